// The host's side of the seam: errors, the stream, scratch memory. Plain C++: nvcc is not needed here.

#include "kernels/cuda/launch.h"

#include <fmt/format.h>

#include <lamina/core/error.h>

#include <string>

namespace lamina::kernels::cuda {

namespace {

std::string sizes_of(const Op& op) {
  std::string text;
  for (const Op::Size& size : op) text += fmt::format("{}{} {}", text.empty() ? "; " : ", ", size.name, size.value);
  return text;
}

std::string text_of(cudaError_t status) { return fmt::format("CUDA: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status)); }

std::string text_of(dim3 d) { return fmt::format("[{}, {}, {}]", d.x, d.y, d.z); }

}  // namespace

void check(const Op& op, cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is reported now; the next check must not find it again
  fail(op.name(), fmt::format("{} in {}{}", text_of(status), call, sizes_of(op)));
}

void check_launch(const Op& op, cudaError_t status, dim3 grid, dim3 block, size_t shared_bytes) {
  if (status == cudaSuccess) return;
  fail(op.name(), fmt::format("{} in the launch of {} with grid {}, block {}, {} bytes of shared memory{}", text_of(status),
                              op.stage() ? op.stage() : op.name(), text_of(grid), text_of(block), shared_bytes, sizes_of(op)));
}

cudaStream_t stream() {
  static const cudaStream_t one = [] {
    cudaStream_t made = nullptr;
    check(Op("stream", {}), cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return made;
  }();
  return one;
}

void* allocate_scratch(const Op& op, size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, bytes, stream());
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) free = total = 0;
    fail(op.name(), fmt::format("out of memory on the GPU: {} bytes wanted, {} of {} free{}", bytes, free, total, sizes_of(op)));
  }
  check(op, status, "cudaMallocAsync");
  return memory;
}

void free_scratch(void* memory) noexcept {
  // A failure can only be an earlier one of the device, which the next checked call reports.
  if (memory) static_cast<void>(cudaFreeAsync(memory, stream()));
}

size_t most_shared_bytes(const Op& op) {
  int device = 0, bytes = 0;
  check(op, cudaGetDevice(&device), "cudaGetDevice");
  check(op, cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<size_t>(bytes);
}

}  // namespace lamina::kernels::cuda
