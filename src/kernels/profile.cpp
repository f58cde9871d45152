#include "kernels/profile.h"

#include <lamina/core/profile.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>

#include "kernels/kernels.h"

namespace lamina {
namespace kernels {
namespace {

struct Total {
  std::atomic<int64_t> calls{0}, nanoseconds{0};
};
std::array<Total, family_count> totals;
constexpr std::array<const char*, family_count> names{"gemm",   "elementwise", "reduce",    "index", "norm", "softmax",
                                                      "random", "optimizer",   "recurrent", "move",  "loss"};

}  // namespace

std::atomic<bool> profiling{false};

int64_t profile_clock() { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void wait_for_gpu() noexcept {
  try {
    CudaBackend::synchronize();
  } catch (const std::exception&) {  // whoever waits next is told
  }
}

void add_to_profile(Family family, int64_t nanoseconds) {
  Total& total = totals[static_cast<size_t>(family)];
  total.calls.fetch_add(1, std::memory_order_relaxed);
  total.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
}

}  // namespace kernels

void start_profile() {
  for (auto& total : kernels::totals) total.calls = total.nanoseconds = 0;
  kernels::profiling = true;
}

std::vector<KernelTime> stop_profile() {
  kernels::profiling = false;
  std::vector<KernelTime> times;
  for (size_t i = 0; i < kernels::totals.size(); ++i)
    if (const int64_t calls = kernels::totals[i].calls; calls > 0)
      times.push_back({kernels::names[i], calls, static_cast<double>(kernels::totals[i].nanoseconds) * 1e-9});
  std::ranges::sort(times, [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace lamina
