#pragma once
// Times kernel calls (those of a GPU until they are done) for core/profile.h: the accessors of kernels.h return a Timed, which lives as long as the
// expression or scope that calls the kernel (its arguments included).

#include <atomic>
#include <cstdint>

#include <lamina/core/device.h>

namespace lamina::kernels {

enum class Family { gemm, elementwise, reduce, index, norm, softmax, random, optimizer, recurrent, move, loss };
constexpr int family_count = 11;

extern std::atomic<bool> profiling;
int64_t profile_clock();  // nanoseconds
void wait_for_gpu() noexcept;
void add_to_profile(Family family, int64_t nanoseconds);

template <class Kernels>
class Timed {
 public:
  Timed(const Kernels& kernels, Family family, Device device)
      : kernels_(kernels), family_(family), on_gpu_(!device.is_cpu()), start_(profiling.load(std::memory_order_relaxed) ? profile_clock() : 0) {}
  ~Timed() {
    if (start_ == 0) return;
    if (on_gpu_) wait_for_gpu();
    add_to_profile(family_, profile_clock() - start_);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  const Kernels* operator->() const { return &kernels_; }

 private:
  const Kernels& kernels_;
  Family family_;
  bool on_gpu_;
  int64_t start_;
};

}  // namespace lamina::kernels
