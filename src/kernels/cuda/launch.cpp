// The host's side of the seam: errors, the stream, scratch memory. Plain C++: nvcc is not needed here.

#include "kernels/cuda/launch.h"

#include <fmt/format.h>

#include <lamina/core/error.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "core/memory_pool.h"
#include "kernels/cuda/device.h"

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
  static std::array<std::atomic<cudaStream_t>, most_devices> streams{};
  static std::mutex mutex;
  std::atomic<cudaStream_t>& mine = streams.at(static_cast<size_t>(current_device()));
  if (cudaStream_t made = mine.load(std::memory_order_acquire)) return made;
  const std::lock_guard lock(mutex);
  if (cudaStream_t made = mine.load(std::memory_order_acquire)) return made;
  cudaStream_t made = nullptr;
  check(Op("stream", {}), cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  mine.store(made, std::memory_order_release);
  return made;
}

void* allocate_scratch(const Op& op, size_t bytes) {
  try {
    return lamina::detail::allocate(static_cast<int64_t>(bytes), {Device::Kind::cuda, current_device()});
  } catch (const Error& error) {
    std::string_view text = error.what();
    if (text.starts_with("[memory] ")) text.remove_prefix(9);
    fail(op.name(), fmt::format("{}{}", text, sizes_of(op)));
  }
}

void free_scratch(void* memory, size_t bytes) noexcept {
  lamina::detail::release(memory, static_cast<int64_t>(bytes), {Device::Kind::cuda, current_device()});
}

size_t most_shared_bytes(const Op& op) {
  int bytes = 0;
  check(op, cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device()), "cudaDeviceGetAttribute");
  return static_cast<size_t>(bytes);
}

}  // namespace lamina::kernels::cuda
