// Copies between host and device. What comes from the host goes through a ring of pinned memory: the copy is asynchronous, and the caller's memory is
// its own again at once. Events say when a part of the ring has been read.

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include <lamina/core/error.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

namespace {

class Ring {
 public:
  Ring() {
    void* memory = nullptr;
    check(op_, cudaHostAlloc(&memory, parts * part_bytes, cudaHostAllocDefault), "cudaHostAlloc");
    memory_ = static_cast<char*>(memory);
    for (cudaEvent_t& event : read_) check(op_, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }

  void copy(char* device, const char* host, size_t bytes) {
    const std::lock_guard lock(mutex_);
    while (bytes > 0) {
      if (used_ == part_bytes) next_part();
      const size_t count = std::min(bytes, part_bytes - used_);
      char* const here = memory_ + part_ * part_bytes + used_;
      std::memcpy(here, host, count);
      check(op_, cudaMemcpyAsync(device, here, count, cudaMemcpyHostToDevice, stream()), "cudaMemcpyAsync");
      used_ += count;
      device += count;
      host += count;
      bytes -= count;
    }
  }

 private:
  static constexpr size_t parts = 16, part_bytes = size_t{1} << 20;

  void next_part() {
    check(op_, cudaEventRecord(read_[part_], stream()), "cudaEventRecord");
    part_ = (part_ + 1) % parts;
    used_ = 0;
    check(op_, cudaEventSynchronize(read_[part_]), "cudaEventSynchronize");  // of an event that was never recorded: no wait
  }

  const Op op_{"copy", {}};
  std::mutex mutex_;
  char* memory_ = nullptr;
  std::array<cudaEvent_t, parts> read_{};
  size_t part_ = 0, used_ = 0;
};

// Never destroyed: the driver may be gone before static variables are.
Ring& ring() {
  static std::array<Ring*, most_devices> rings{};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Ring*& mine = rings.at(static_cast<size_t>(current_device()));
  if (!mine) mine = new Ring;
  return *mine;
}

}  // namespace

void copy_from_host(void* device, const void* host, size_t bytes) {
  const Op op("copy", {{"bytes", static_cast<int64_t>(bytes)}});
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(op, cudaStreamIsCapturing(stream(), &status), "cudaStreamIsCapturing");
  if (status != cudaStreamCaptureStatusNone) fail("copy", "a captured step copies from host memory, whose values would stay those of the capture");
  ring().copy(static_cast<char*>(device), static_cast<const char*>(host), bytes);
}

void copy_to_host(void* host, const void* device, size_t bytes) {
  const Op op("copy", {{"bytes", static_cast<int64_t>(bytes)}});
  check(op, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync");
  check(op, cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

}  // namespace lamina::kernels::cuda
