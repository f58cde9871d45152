// The host's side of fault records.

#include "kernels/cuda/fault.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <lamina/core/error.h>

#include <array>
#include <map>
#include <mutex>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

namespace {

using Record = std::array<unsigned long long, fault_fields>;

// The records of all GPUs that were used. The first one is made in the constructor, so that these are given back before CUDA's own state goes.
class Records {
 public:
  Records() { of(current_device()); }
  ~Records() {
    for (const auto& [gpu, record] : records_) static_cast<void>(cudaFree(record));
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  unsigned long long* of(int gpu) {
    const std::lock_guard lock(mutex_);
    unsigned long long*& record = records_[gpu];
    if (record) return record;
    const Op op("fault", {});
    void* memory = nullptr;
    check(op, cudaMalloc(&memory, sizeof(Record)), "cudaMalloc");
    record = static_cast<unsigned long long*>(memory);
    check(op, cudaMemsetAsync(record, 0, sizeof(Record), stream()), "cudaMemsetAsync");
    return record;
  }

 private:
  std::mutex mutex_;
  std::map<int, unsigned long long*> records_;
};

const char* text_at(unsigned long long address) { return reinterpret_cast<const char*>(static_cast<uintptr_t>(address)); }

}  // namespace

unsigned long long* fault_record() {
  static Records records;
  return records.of(current_device());
}

void throw_if_fault() {
  const Op op("fault", {});
  unsigned long long* const record = fault_record();
  Record found;
  check(op, cudaMemcpyAsync(found.data(), record, sizeof found, cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync");
  check(op, cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  if (found[fault_taken] == 0) return;
  check(op, cudaMemsetAsync(record, 0, sizeof(Record), stream()), "cudaMemsetAsync");
  fail(text_at(found[fault_op]), fmt::format("{}: {} at position {} is out of range 0 to {} (found on the GPU)", text_at(found[fault_argument]),
                                             static_cast<int64_t>(found[fault_value]), static_cast<int64_t>(found[fault_position]),
                                             static_cast<int64_t>(found[fault_limit]) - 1));
}

}  // namespace lamina::kernels::cuda
