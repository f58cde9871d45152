#pragma once
// Statistics over the sequences of one step of a recurrent layer: a block takes a few columns of all rows.

#include <cmath>

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

/// A block has 8 columns (32 bytes of f32), each shared by 32 threads, which take every 32nd row.
struct ColumnThreads {
  static constexpr int columns = 8, slices = 32, block = columns * slices, warps = block / warp_size, in_warp = warp_size / columns;

  __device__ static int column() { return static_cast<int>(threadIdx.x) % columns; }
  __device__ static int slice() { return static_cast<int>(threadIdx.x) / columns; }

  /// Adds up in T within a warp, in double beyond; the same, to the bit, in all threads of a column.
  template <class T, int n>
  __device__ static void sum(const T (&parts)[n], double (&totals)[n]) {
    __shared__ shared_array<double, n * block / in_warp> of_warps;
    __syncthreads();  // the sums of the last call have been read
    const int warp = static_cast<int>(threadIdx.x) / warp_size;
    for (int i = 0; i < n; ++i) {
      T value = parts[i];
      for (int distance = columns; distance < warp_size; distance *= 2) value += __shfl_xor_sync(all_lanes, value, distance);
      if (slice() % in_warp == 0) of_warps[(i * warps + warp) * columns + column()] = static_cast<double>(value);
    }
    __syncthreads();
    for (int i = 0; i < n; ++i) {
      totals[i] = of_warps[i * warps * columns + column()];
      for (int other = 1; other < warps; ++other) totals[i] += of_warps[(i * warps + other) * columns + column()];
    }
  }

  template <int n>
  __device__ static void sum(double (&values)[n]) {
    sum(values, values);
  }

  __device__ static double largest(double value) {
    __shared__ shared_array<double, block> all;
    __syncthreads();
    all[threadIdx.x] = value;
    __syncthreads();
    for (int other = 0; other < slices; ++other) {
      const double theirs = all[other * columns + column()];
      if (theirs > value) value = theirs;
    }
    return value;
  }

  /// f(row) for the rows of this thread.
  template <class F>
  __device__ static void each(int64_t rows, bool inside, F f) {
    if (inside)
      for (int64_t row = slice(); row < rows; row += slices) f(row);
  }
};

template <class T>
struct ColumnMoments {
  RowStatistics<T> s;
  T var = 0;
};

/// Statistics of one of the columns that `each` shows, where squares are of no use.
template <class T, class Each>
__device__ ColumnMoments<T> scaled_column(double eps, double count, int of, const Each& each) {
  const auto each_value = [&](auto f) {
    each([&](int i, T value) {
      if (i == of) f(static_cast<double>(value));
    });
  };
  const ScaledMoments scaled = scaled_moments<ColumnThreads>(true, count, count, each_value);
  return {scaled.statistics<T>(eps), static_cast<T>(scaled.var * scaled.scale * scaled.scale)};
}

/// The statistics of n columns of a thread: each(f) calls f(column, value) for its rows, first(column) is the value in row 0, near which the mean is
/// looked for. In two passes, as channel statistics.
template <class T, int n, class Each, class First>
__device__ void measure_columns(double eps, double count, const Each& each, const First& first, ColumnMoments<T> (&result)[n]) {
  T origins[n], sums[n] = {};
  double offsets[n];
  for (int i = 0; i < n; ++i) origins[i] = first(i);
  each([&](int i, T value) { sums[i] += value - origins[i]; });
  ColumnThreads::sum(sums, offsets);
  T moments[2 * n] = {};
  double totals[2 * n];
  for (int i = 0; i < n; ++i) result[i].s.mean = static_cast<T>(static_cast<double>(origins[i]) + offsets[i] / count);
  each([&](int i, T value) {
    const T d = value - result[i].s.mean;
    moments[2 * i] += d;
    moments[2 * i + 1] = std::fma(d, d, moments[2 * i + 1]);
  });
  ColumnThreads::sum(moments, totals);
  bool untrusted = false;
  for (int i = 0; i < n; ++i) {
    const double near = static_cast<double>(result[i].s.mean), residual = totals[2 * i] / count;
    double squares = totals[2 * i + 1] - residual * totals[2 * i];
    if (squares < 0) squares = 0;  // rounding; a NaN stays
    result[i].var = static_cast<T>(squares / count);
    result[i].s.mean = static_cast<T>(near + residual);
    result[i].s.shift = static_cast<T>(near - static_cast<double>(result[i].s.mean) + residual);
    const double var = static_cast<double>(result[i].var);
    result[i].s.rstd = static_cast<T>(1 / std::sqrt(var + eps));
    if (!trusted<T>(var, eps)) untrusted = true;
  }
  if (__syncthreads_or(untrusted) == 0) return;
  ColumnMoments<T> anew[n];
#pragma unroll 1
  for (int i = 0; i < n; ++i) anew[i] = scaled_column<T>(eps, count, i, each);
  for (int i = 0; i < n; ++i)
    if (!trusted<T>(static_cast<double>(result[i].var), eps)) result[i] = anew[i];
}

}  // namespace lamina::kernels::cuda
