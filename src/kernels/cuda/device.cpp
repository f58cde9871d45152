// GPUs, their memory, and copies between them and the host.

#include "kernels/cuda/device.h"

#include <fmt/format.h>

#include <lamina/core/error.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/launch.h"

namespace lamina::kernels {

namespace cuda {

namespace {
thread_local int chosen = -1;  // -1: whatever the runtime begins with
}  // namespace

int current_device() {
  if (chosen < 0) CudaBackend::use(0);
  return chosen;
}

int device_of(const void* p) {
  cudaPointerAttributes attributes{};
  check(Op("copy", {}), cudaPointerGetAttributes(&attributes, p), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
}

}  // namespace cuda

using cuda::check;
using cuda::Op;

bool CudaBackend::built() { return true; }

int CudaBackend::count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count < cuda::most_devices ? count : cuda::most_devices;
  cudaGetLastError();
  return 0;
}

std::string CudaBackend::why_none() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return status == cudaSuccess ? "there is no GPU" : fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
}

std::string CudaBackend::name(int index) {
  cudaDeviceProp properties{};
  check(Op("device", {{"index", index}}), cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return properties.name;
}

void CudaBackend::use(int index) {
  if (cuda::chosen == index) return;
  const Op op("device", {{"index", index}});
  check(op, cudaSetDevice(index), "cudaSetDevice");
  // What the driver's pool has got it keeps: lamina's own free list comes back for it.
  cudaMemPool_t pool = nullptr;
  check(op, cudaDeviceGetDefaultMemPool(&pool, index), "cudaDeviceGetDefaultMemPool");
  uint64_t threshold = UINT64_MAX;
  check(op, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
  cuda::chosen = index;
}

void* CudaBackend::allocate(int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, static_cast<size_t>(bytes), cuda::stream());
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(Op("memory", {{"bytes", bytes}}), status, "cudaMallocAsync");
  return memory;
}

void CudaBackend::release(void* memory) noexcept {
  // A failure can only be an earlier one of the device, which the next checked call reports.
  static_cast<void>(cudaFreeAsync(memory, cuda::stream()));
}

std::pair<int64_t, int64_t> CudaBackend::memory() {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    free = total = 0;
  }
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

void CudaBackend::synchronize() { cuda::throw_if_fault(); }

}  // namespace lamina::kernels
