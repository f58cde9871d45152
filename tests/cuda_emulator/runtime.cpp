#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda_emulator/cuda_runtime.h"
#include "cuda_emulator/heap.h"
#include "cuda_emulator/report.h"

namespace {

using cuda_emulator::Limits;

int device_count = 1;
cudaError_t device_error = cudaSuccess;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::recursive_mutex& one_at_a_time() {
  static std::recursive_mutex mutex;
  return mutex;
}

std::map<const void*, size_t>& raised_limits() {
  static std::map<const void*, size_t> limits;
  return limits;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const char* operation) {
  using namespace cuda_emulator;
  const std::lock_guard lock(one_at_a_time());
  if (bytes == 0) return cudaSuccess;
  const bool to_device = is_device_address(to), from_device = is_device_address(from);
  const cudaMemcpyKind actual =
      to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice) : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  if (kind != cudaMemcpyDefault && kind != actual) violation(std::string(operation) + ": the direction does not fit the pointers");
  const auto offset = [](const Memory& memory, const void* p) { return reinterpret_cast<uintptr_t>(p) - memory.address(); };
  Memory* const target = to_device ? &memory_at(to, bytes, operation) : nullptr;
  Memory* const source = from_device ? &memory_at(from, bytes, operation) : nullptr;
  const void* const bytes_from = source ? source->data() + offset(*source, from) : from;
  void* const bytes_to = target ? target->data() + offset(*target, to) : to;
  if (source && !target) source->host_read(offset(*source, from), bytes, operation);
  if (target && source) target->copy_shadow(offset(*target, to), *source, offset(*source, from), bytes);
  if (target && !source) target->host_write(offset(*target, to), bytes);
  std::memmove(bytes_to, bytes_from, bytes);
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, size_t bytes, const char* operation) {
  using namespace cuda_emulator;
  const std::lock_guard lock(one_at_a_time());
  if (bytes == 0) return cudaSuccess;
  Memory& memory = memory_at(to, bytes, operation);
  const size_t offset = reinterpret_cast<uintptr_t>(to) - memory.address();
  memory.host_write(offset, bytes);
  std::memset(memory.data() + offset, value, bytes);
  return cudaSuccess;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  if (device_error == cudaSuccess) *count = device_count;  // else it stays as it is, as on real machines
  return remember(device_error);
}
cudaError_t cudaGetDevice(int* device) { return *device = 0, remember(device_error); }
cudaError_t cudaSetDevice(int device) { return remember(device >= 0 && device < device_count ? device_error : cudaErrorInvalidDevice); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= device_count) return remember(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : static_cast<int>(Limits::shared_opt_in);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = cuda_emulator::device_bytes();
  *free = *total - cuda_emulator::device_bytes_in_use();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const std::lock_guard lock(one_at_a_time());
  *pointer = cuda_emulator::allocate(bytes);
  return remember(*pointer || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* pointer) {
  const std::lock_guard lock(one_at_a_time());
  if (pointer) cuda_emulator::deallocate(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) { return copy(to, from, bytes, kind, "cudaMemcpy"); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return copy(to, from, bytes, kind, "cudaMemcpyAsync");
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return fill(to, value, bytes, "cudaMemset"); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) { return fill(to, value, bytes, "cudaMemsetAsync"); }

struct CUstream_st {};
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return *stream = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  const std::lock_guard lock(one_at_a_time());
  if (value < 0 || static_cast<size_t>(value) > Limits::shared_opt_in) return remember(cudaErrorInvalidValue);
  raised_limits()[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

namespace cuda_emulator {

void set_device_count(int count, cudaError_t error) {
  device_count = count;
  device_error = error;
}

cudaError_t launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  const std::lock_guard lock(one_at_a_time());
  const bool empty = grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  if (empty || grid.x > Limits::grid_x || grid.y > Limits::grid_yz || grid.z > Limits::grid_yz) return remember(cudaErrorInvalidConfiguration);
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (block.x > Limits::threads || block.y > Limits::threads || block.z > Limits::block_z || threads > Limits::threads)
    return remember(cudaErrorInvalidConfiguration);
  const auto raised = raised_limits().find(kernel);
  const bool is_raised = raised != raised_limits().end();
  if (shared_bytes > (is_raised ? raised->second : Limits::shared)) return remember(cudaErrorInvalidValue);
  run_grid(name, grid, block, shared_bytes, is_raised ? Limits::shared_opt_in : Limits::shared, body);
  return cudaSuccess;
}

}  // namespace cuda_emulator
