// Errors, devices, memory and launches; copies.cpp, streams.cpp and graph.cpp have the rest of the runtime.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "cuda_emulator/cuda_runtime.h"
#include "cuda_emulator/heap.h"
#include "cuda_emulator/report.h"
#include "cuda_emulator/streams.h"

using namespace cuda_emulator;

namespace {

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
const ErrorText* find_error(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(errors), std::end(errors), [&](const ErrorText& e) { return e.error == error; });
  return found == std::end(errors) ? nullptr : found;
}

thread_local cudaError_t last_error = cudaSuccess;

struct Devices {
  int count = 1;
  cudaError_t error = cudaSuccess;
};
Devices& devices() {
  static Devices all = [] {
    const char* const value = std::getenv("CUDA_EMULATOR_DEVICES");
    return Devices{value ? std::atoi(value) : 1, cudaSuccess};
  }();
  return all;
}
thread_local int chosen_device = 0;

// CUDA_VISIBLE_DEVICES: numbers of devices, up to the first that does not exist.
Devices visible_devices() {
  Devices result = devices();
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
  if (value && result.error == cudaSuccess) {
    int visible = 0;
    for (const char* at = value; *at != '\0' && visible < result.count; ++visible) {
      char* end = nullptr;
      const long number = std::strtol(at, &end, 10);
      if (end == at || number < 0 || number >= result.count) break;
      at = *end == ',' ? end + 1 : end;
    }
    result.count = visible;
  }
  if (result.count <= 0 && result.error == cudaSuccess) result.error = cudaErrorNoDevice;
  return result;
}

cudaError_t check_device(int device) {
  const Devices visible = visible_devices();
  if (visible.error != cudaSuccess) return remember(visible.error);
  return remember(device >= 0 && device < visible.count ? cudaSuccess : cudaErrorInvalidDevice);
}

std::map<const void*, size_t>& raised_limits() {
  static std::map<const void*, size_t> limits;
  return limits;
}

}  // namespace

struct CUmemPoolHandle_st {
  int device = 0;
  uint64_t release_threshold = 0;
};

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const found = find_error(error);
  return found ? found->name : "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const found = find_error(error);
  return found ? found->text : "unrecognized error code";
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetDeviceCount(int* count) {
  const Devices visible = visible_devices();
  if (visible.error == cudaSuccess) *count = visible.count;  // else it stays as it is, as on real machines
  return remember(visible.error);
}
cudaError_t cudaGetDevice(int* device) { return *device = chosen_device, device_status(); }
cudaError_t cudaSetDevice(int device) {
  const cudaError_t status = check_device(device);
  if (status == cudaSuccess) chosen_device = device;
  return status;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t status = check_device(device); status != cudaSuccess) return status;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = Limits::threads; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = Limits::shared; break;
    case cudaDevAttrWarpSize: *value = lanes; break;
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = Limits::shared_opt_in; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return remember(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t status = check_device(device); status != cudaSuccess) return status;
  const auto get = [&](cudaDeviceAttr attribute) {
    int value = 0;
    cudaDeviceGetAttribute(&value, attribute, device);
    return value;
  };
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->totalGlobalMem = device_bytes();
  properties->sharedMemPerBlock = Limits::shared;
  properties->sharedMemPerBlockOptin = Limits::shared_opt_in;
  properties->major = get(cudaDevAttrComputeCapabilityMajor);
  properties->minor = get(cudaDevAttrComputeCapabilityMinor);
  properties->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
  properties->warpSize = lanes;
  properties->maxThreadsPerBlock = Limits::threads;
  properties->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
  return *version = visible_devices().error == cudaErrorInsufficientDriver ? 11040 : 12040, cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  *total = device_bytes();
  *free = *total - std::min(*total, device_bytes_in_use());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  *pointer = allocate(bytes);
  return remember(*pointer || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* pointer) {
  const std::lock_guard lock(one_at_a_time());
  if (!pointer) return cudaSuccess;
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  finish_all();
  deallocate(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t handle) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  if (stream->capture) violation("cudaMallocAsync in a capture: the memory would belong to the graph, which is not emulated");
  *pointer = allocate(bytes);
  if (!*pointer && bytes > 0) {
    finish(*stream);  // which may free some
    *pointer = allocate(bytes);
  }
  return remember(*pointer || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  const std::lock_guard lock(one_at_a_time());
  const CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  if (stream->capture) violation("cudaFreeAsync in a capture: it would free at each replay, which is not emulated");
  return pointer ? submit(handle, [pointer] { deallocate(pointer); }) : cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  if (flags > (cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)) return remember(cudaErrorInvalidValue);
  *pointer = allocate_pinned(bytes);
  return remember(*pointer || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void* pointer) {
  const std::lock_guard lock(one_at_a_time());
  if (!pointer) return cudaSuccess;
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  finish_all();
  deallocate_pinned(pointer);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  const Memory* const memory = is_device_address(pointer) ? memory_around(pointer) : nullptr;
  const bool on_device = memory && memory->alive() && reinterpret_cast<uintptr_t>(pointer) < memory->address() + memory->size();
  const bool pinned = !on_device && is_pinned(pointer, 1);
  void* const address = const_cast<void*>(pointer);
  attributes->type = on_device ? cudaMemoryTypeDevice : pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  attributes->device = on_device ? memory->device() : pinned ? chosen_device : -2;
  attributes->devicePointer = on_device || pinned ? address : nullptr;
  attributes->hostPointer = on_device ? nullptr : address;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  const std::lock_guard lock(one_at_a_time());
  if (const cudaError_t status = check_device(device); status != cudaSuccess) return status;
  static std::map<int, CUmemPoolHandle_st> pools;
  *pool = &pools[device];
  (*pool)->device = device;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  if (!pool || !value || attribute != cudaMemPoolAttrReleaseThreshold) return remember(cudaErrorInvalidValue);
  pool->release_threshold = *static_cast<const uint64_t*>(value);
  return cudaSuccess;
}
// The emulated pool keeps nothing that was freed.
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  if (!pool || !value) return remember(cudaErrorInvalidValue);
  *static_cast<uint64_t*>(value) = attribute == cudaMemPoolAttrReleaseThreshold ? pool->release_threshold : device_bytes_in_use(pool->device);
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) { return remember(pool ? cudaSuccess : cudaErrorInvalidValue); }

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  const std::lock_guard lock(one_at_a_time());
  if (value < 0 || static_cast<size_t>(value) > Limits::shared_opt_in) return remember(cudaErrorInvalidValue);
  raised_limits()[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

namespace cuda_emulator {

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int current_device() { return chosen_device; }
cudaError_t device_status() { return check_device(chosen_device); }

void set_device_count(int count, cudaError_t error) { devices() = {count, error}; }

cudaError_t launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t handle,
                   const std::function<void()>& body) {
  const std::lock_guard lock(one_at_a_time());
  const bool empty = grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  if (empty || grid.x > Limits::grid_x || grid.y > Limits::grid_yz || grid.z > Limits::grid_yz) return remember(cudaErrorInvalidConfiguration);
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (block.x > Limits::threads || block.y > Limits::threads || block.z > Limits::block_z || threads > Limits::threads)
    return remember(cudaErrorInvalidConfiguration);
  const auto raised = raised_limits().find(kernel);
  const bool is_raised = raised != raised_limits().end();
  if (shared_bytes > (is_raised ? raised->second : Limits::shared)) return remember(cudaErrorInvalidValue);
  const CUstream_st* const stream = find_stream(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  const size_t limit = is_raised ? Limits::shared_opt_in : Limits::shared;
  const auto run = [=](const std::string& title, const std::function<void()>& f) { run_grid(title, grid, block, shared_bytes, limit, f); };
  if (when(*stream) == When::now) return submit(handle, [&] { run(name, body); });
  return submit(handle, [run, title = std::string(name), body] { run(title, body); });
}

}  // namespace cuda_emulator
