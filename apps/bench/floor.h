#pragma once
// The floor of a workload: its necessary floating-point operations at the peak GEMM rate (1024^3 in the same run), plus the time of plain loops
// that make its necessary reads and writes at the same footprint in the same run: all sweeps in turn, over arrays that stand for the workload's. On a
// GPU: of copies that move as many bytes.

#include <cstdint>
#include <vector>

#include <lamina/core/device.h>

namespace bench {

/// One sweep over the first `bytes` of some of the workload's arrays, which have numbers from 0 on: `reads` and `writes` are only read or only
/// written, `updates` are read, changed and written back.
struct Sweep {
  int64_t bytes = 0;
  std::vector<size_t> reads, writes, updates;
  bool operator==(const Sweep&) const = default;
};

struct Work {
  double flops = 0;
  std::vector<Sweep> sweeps;
};

/// Seconds of the best of several bursts of `run`, per call (PyTorch's peer script measures in the same way).
struct Timing {
  double seconds = 0;
  double cores = 0;  // CPU time of this process / wall time in the best burst
};

/// What is queued on the device is waited for at both ends of a burst.
template <class F>
Timing time_burst(F&& run, int repeat, lamina::Device device, double budget = 0.4);

class Floor {
 public:
  /// `cores`: how many this process may use.
  Floor(int repeat, int cores, lamina::Device device) : repeat_(repeat), cores_(cores), device_(device) {}
  double flop_seconds(const Work& work);
  double move_seconds(const Work& work);
  double peak_flops();
  /// Measures the GEMM rate anew. Another job on these cores shows as another rate, or as fewer cores at work than threads.
  bool machine_is_busy();
  /// Forgets what was measured: the machine has changed.
  void measure_again();

 private:
  double time_sweeps(const std::vector<Sweep>& sweeps) const;
  double time_copies(const std::vector<Sweep>& sweeps) const;
  Timing measure_peak() const;

  int repeat_, cores_;
  lamina::Device device_;
  Timing peak_;
  std::vector<std::pair<std::vector<Sweep>, double>> known_;
};

double wall_seconds();
double cpu_seconds();

template <class F>
Timing time_burst(F&& run, int repeat, lamina::Device device, double budget) {
  run();
  run();
  lamina::synchronize(device);
  double start = wall_seconds();
  run();
  lamina::synchronize(device);
  const double once = wall_seconds() - start;
  const int count = once >= budget ? 1 : static_cast<int>(budget / (once > 1e-7 ? once : 1e-7)) + 1;
  Timing best{1e300, 0};
  for (int r = 0; r < repeat; ++r) {
    const double cpu = cpu_seconds();
    start = wall_seconds();
    for (int i = 0; i < count; ++i) run();
    lamina::synchronize(device);
    const double wall = wall_seconds() - start;
    if (wall / count < best.seconds) best = {wall / count, (cpu_seconds() - cpu) / wall};
  }
  return best;
}

}  // namespace bench
