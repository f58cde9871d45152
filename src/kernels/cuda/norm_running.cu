// Running statistics of the channel normaliser: one block sees all channels, since a batch with one statistic that is not finite is left out whole.

#include "kernels/cuda/device/arithmetic.cuh"
#include "kernels/cuda/norm.h"

namespace lamina::kernels::cuda {

namespace {

constexpr int threads = 512;

template <class T>
struct Running {
  int64_t channels;
  double momentum, unbiased;
  bool cumulative;
  dptr<const T> batch_mean, batch_var;
  dptr<T> mean, var;
  dptr<int64_t> batches_tracked;
};

__device__ inline bool is_finite(double value) { return value - value == 0; }

template <class T>
__global__ void __launch_bounds__(threads) move_statistics(Running<T> r) {
  bool bad = false;
  for (int64_t c = threadIdx.x; c < r.channels; c += threads) {
    if (!is_finite(static_cast<double>(T(r.batch_mean[c])))) bad = true;
    if (r.batch_var != nullptr && !is_finite(static_cast<double>(T(r.batch_var[c])) * r.unbiased)) bad = true;
  }
  const int64_t count = r.batches_tracked != nullptr ? int64_t(r.batches_tracked[0]) + 1 : 0;
  if (__syncthreads_or(bad) != 0) return;
  const double weight = r.cumulative ? 1.0 / static_cast<double>(count) : r.momentum;
  const auto blend = [&](dptr<T> running, int64_t c, double batch) {
    running[c] = static_cast<T>(add_product((1 - weight) * static_cast<double>(T(running[c])), weight, batch));
  };
  for (int64_t c = threadIdx.x; c < r.channels; c += threads) {
    blend(r.mean, c, static_cast<double>(T(r.batch_mean[c])));
    if (r.batch_var != nullptr) blend(r.var, c, static_cast<double>(T(r.batch_var[c])) * r.unbiased);
  }
  if (threadIdx.x == 0 && r.batches_tracked != nullptr) r.batches_tracked[0] = count;
}

}  // namespace

template <class T>
void move_running(const RunningChannels<T>& r) {
  launch(Op("running_statistics", {{"channels", r.channels}}), move_statistics<T>, 1, threads, 0, stream(),
         Running<T>{r.channels, r.momentum, r.unbiased, r.cumulative, r.batch_mean, r.batch_var, r.mean, r.var, r.batches_tracked});
}
template void move_running(const RunningChannels<float>&);
template void move_running(const RunningChannels<double>&);

}  // namespace lamina::kernels::cuda
