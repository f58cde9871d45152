#include "bench/floor.h"

#include <lamina/lamina.h>

#include <cblas.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace bench {

using namespace lamina;

double wall_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

namespace {
constexpr int64_t peak_size = 1024;
// A quiet machine repeats itself within a few percent, and a product of this size keeps every thread computing.
constexpr double largest_drift = 0.15, smallest_share = 0.9;
}  // namespace

Timing Floor::measure_peak() const {
  Rng rng(1);
  const Tensor a = randn({peak_size, peak_size}, rng).to(device_), b = randn({peak_size, peak_size}, rng).to(device_);
  if (!device_.is_cpu()) return time_burst([&] { matmul(a, b); }, repeat_, device_);
  // OpenBLAS: products on a processor's matrix unit can be faster than this rate.
  lamina::detail::use_blas_threads();
  Tensor c = Tensor::empty({peak_size, peak_size});
  const int size = static_cast<int>(peak_size);
  return time_burst(
      [&] {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1.0f, a.data<float>(), size, b.data<float>(), size, 0.0f,
                    c.mutable_data<float>(), size);
      },
      repeat_, device_);
}

double Floor::peak_flops() {
  if (peak_.seconds == 0) peak_ = measure_peak();
  return 2.0 * peak_size * peak_size * peak_size / peak_.seconds;
}

bool Floor::machine_is_busy() {
  peak_flops();
  const Timing now = measure_peak();
  return std::abs(now.seconds / peak_.seconds - 1) > largest_drift ||
         (device_.is_cpu() && std::min(now.cores, peak_.cores) < smallest_share * std::min(num_threads(), cores_));
}

double Floor::flop_seconds(const Work& work) { return work.flops == 0 ? 0 : work.flops / peak_flops(); }

double Floor::move_seconds(const Work& work) {
  for (const auto& [known, seconds] : known_)
    if (known == work.sweeps) return seconds;
  const double seconds = work.sweeps.empty() ? 0 : device_.is_cpu() ? time_sweeps(work.sweeps) : time_copies(work.sweeps);
  return known_.emplace_back(work.sweeps, seconds).second;
}

namespace {

struct Arrays {
  std::vector<const float*> reads;
  std::vector<float*> writes, updates;
};

// Each loop touches its arrays once, elements being combined so that the compiler can drop nothing; the arithmetic is far below the cost of the
// memory.
void read_loop(const std::vector<const float*>& arrays, int64_t begin, int64_t end, float& sink) {
  float partial[16] = {};
  for (const float* x : arrays) {
    int64_t i = begin;
    for (; i + 16 <= end; i += 16)
      for (int lane = 0; lane < 16; ++lane) partial[lane] += x[i + lane];
  }
  for (const float value : partial) sink += value;
}

void update_loop(float* x, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) x[i] = x[i] * 0.999f + 1e-6f;
}

void copy_loop(const float* x, float* y, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] * 0.999f;
}

void combine_loop(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
}

/// Elements [begin, end) of all arrays, in cache-sized pieces: all arrays of a piece before the next, as a fused kernel would walk them.
void walk(const Arrays& arrays, int64_t begin, int64_t end, float& sink) {
  constexpr int64_t piece = 4096;
  for (int64_t at = begin; at < end; at += piece) {
    const int64_t stop = std::min(end, at + piece);
    for (float* x : arrays.updates) update_loop(x, at, stop);
    if (arrays.writes.size() == 1 && arrays.reads.size() == 1)
      copy_loop(arrays.reads[0], arrays.writes[0], at, stop);
    else if (arrays.writes.size() == 1 && arrays.reads.size() == 2)
      combine_loop(arrays.reads[0], arrays.reads[1], arrays.writes[0], at, stop);
    else
      read_loop(arrays.reads, at, stop, sink);
  }
}

}  // namespace

double Floor::time_sweeps(const std::vector<Sweep>& sweeps) const {
  std::vector<int64_t> sizes;
  for (const Sweep& sweep : sweeps)
    for (const auto* numbers : {&sweep.reads, &sweep.writes, &sweep.updates})
      for (const size_t i : *numbers) {
        if (i >= sizes.size()) sizes.resize(i + 1);
        sizes[i] = std::max(sizes[i], sweep.bytes / 4);
      }
  std::vector<Tensor> tensors;
  for (const int64_t n : sizes) tensors.push_back(Tensor::ones({n}));
  const auto array = [&](size_t i) { return tensors[i].mutable_data<float>(); };
  std::vector<Arrays> arrays(sweeps.size());
  for (size_t s = 0; s < sweeps.size(); ++s) {
    for (const size_t i : sweeps[s].reads) arrays[s].reads.push_back(array(i));
    for (const size_t i : sweeps[s].writes) arrays[s].writes.push_back(array(i));
    for (const size_t i : sweeps[s].updates) arrays[s].updates.push_back(array(i));
  }
  constexpr size_t apart = 16;  // sinks in cache lines of their own
  std::vector<float> sinks(static_cast<size_t>(num_threads()) * apart);
  const auto sweep_all = [&] {
    for (size_t s = 0; s < sweeps.size(); ++s) {
      const int64_t n = sweeps[s].bytes / 4;
      parallel_for(n, 16384, [&](int64_t begin, int64_t end) {
        walk(arrays[s], begin, end, sinks[static_cast<size_t>(begin * num_threads() / std::max<int64_t>(n, 1)) * apart]);
      });
    }
  };
  return time_burst(sweep_all, repeat_, device_).seconds;
}

double Floor::time_copies(const std::vector<Sweep>& sweeps) const {
  int64_t moved = 0;
  for (const Sweep& sweep : sweeps)
    moved += sweep.bytes / 4 * static_cast<int64_t>(sweep.reads.size() + sweep.writes.size() + 2 * sweep.updates.size());
  const Tensor from = Tensor::ones({moved / 2}, DType::f32, device_);
  Tensor to = Tensor::empty(from.shape(), DType::f32, device_);
  return time_burst([&] { to.copy_(from); }, repeat_, device_).seconds;
}

void Floor::measure_again() {
  peak_ = {};
  known_.clear();
}

}  // namespace bench
