#pragma once
// What the cells of recurrent layers share where a row belongs to a block: its threads, their columns, and the statistics of its runs.

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/row.cuh"
#include "kernels/recurrent.h"

namespace lamina::kernels::cuda {

template <class T>
__device__ inline T sigmoid(T v) {
  return T(1) / (T(1) + std::exp(-v));
}
/// What is 1 - v^2 and v (1 - v) to tanh and the logistic function.
template <class T>
__device__ inline T tanh_slope(T v) {
  return std::fma(-v, v, T(1));
}
template <class T>
__device__ inline T sigmoid_slope(T v) {
  return std::fma(-v, v, v);
}

/// The threads of a block, as many warps as a row has work for. Sums come out the same, to the bit, in each of them.
struct RowThreads {
  static constexpr int most = 512, most_warps = most / warp_size;

  /// Adds up in T within a warp, in double beyond.
  template <class T, int n>
  __device__ static void sum(const T (&parts)[n], double (&totals)[n]) {
    __shared__ shared_array<double, n * most_warps> of_warps;
    const int warps = static_cast<int>(blockDim.x) / warp_size;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      T value = parts[i];
      for (int distance = warp_size / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(all_lanes, value, distance);
      totals[i] = static_cast<double>(value);
    }
    if (warps == 1) return;
    __syncthreads();  // the sums of the last call have been read
    if (WarpGroup::rank() == 0)
      for (int i = 0; i < n; ++i) of_warps[i * most_warps + WarpGroup::number()] = totals[i];
    __syncthreads();
    const int warp = WarpGroup::rank() % most_warps;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      double value = 0;
      if (warp < warps) value = of_warps[i * most_warps + warp];
      for (int distance = most_warps / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(all_lanes, value, distance);
      totals[i] = value;
    }
  }

  template <int n>
  __device__ static void sum(double (&values)[n]) {
    sum(values, values);
  }

  __device__ static double largest(double value) {
    __shared__ shared_array<double, most_warps> of_warps;
    value = WarpGroup::largest(value);
    __syncthreads();
    if (WarpGroup::rank() == 0) of_warps[WarpGroup::number()] = value;
    __syncthreads();
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / warp_size; ++warp) {
      const double other = of_warps[warp];
      if (other > value) value = other;
    }
    return value;
  }
};

/// A thread's columns of a row of H: packs side by side, the last of which may be cut short. kHeld: one pack at most.
template <class T, bool kHeld>
struct RowColumns {
  static constexpr int vec = Pack<T>::size;

  __device__ RowColumns(int64_t width, bool whole_packs) : hidden(width), packs(whole_packs) {}

  /// f(first column) for each pack.
  template <class F>
  __device__ void each(F f) const {
    const int64_t first = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * vec;
    if constexpr (kHeld) {
      if (first < hidden) f(first);
    } else {
      for (int64_t j = first; j < hidden; j += int64_t{gridDim.y} * blockDim.x * vec) f(j);
    }
  }
  __device__ int count(int64_t j) const { return hidden - j < vec ? static_cast<int>(hidden - j) : vec; }
  /// From column j of the row or gate at p on; 0 past the last.
  __device__ void get(std::type_identity_t<dptr<const T>> p, int64_t j, T (&values)[vec]) const {
    if (packs) return load(p + j, values);
    for (int k = 0; k < vec; ++k) {
      values[k] = T(0);
      if (j + k < hidden) values[k] = p[j + k];
    }
  }
  __device__ void put(std::type_identity_t<dptr<T>> p, int64_t j, const T (&values)[vec]) const {
    if (packs) return store<T, vec>(p + j, values);
    for (int k = 0; k < vec; ++k)
      if (j + k < hidden) p[j + k] = values[k];
  }

  int64_t hidden;
  bool packs;
};

/// How many runs of a row have statistics of their own, how many gates are in each, and in which one a gate is.
template <Cell cell, TermNorm norm>
struct Segments {
  static constexpr int gates = cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1;
  static constexpr bool normalised = norm == TermNorm::terms || norm == TermNorm::gates;
  static constexpr bool two = norm == TermNorm::terms || cell == Cell::gru;  // a_h has an array of its own
  static constexpr int count = norm == TermNorm::gates ? gates : cell == Cell::gru ? 2 : 1;
  static constexpr int runs = norm == TermNorm::terms ? 2 * count : count;  // of a_x, then of a_h
  __host__ __device__ static constexpr int of(int gate) { return norm == TermNorm::gates ? gate : cell == Cell::gru && gate == 2 ? 1 : 0; }
  __host__ __device__ static constexpr int size(int segment) { return norm == TermNorm::gates ? 1 : cell == Cell::gru ? 2 - segment : gates; }
};

/// x-hat of a run: (x - mean) rstd + rest, where rest is what the mean's rounding lost.
template <class T>
struct Normaliser {
  __device__ static Normaliser at(dptr<const T> statistics) { return {statistics[0], statistics[1], statistics[2]}; }
  __device__ static Normaliser of(const RowStatistics<T>& s) { return {s.mean, s.rstd, -s.shift * s.rstd}; }
  __device__ void put(dptr<T> statistics) const { statistics[0] = mean, statistics[1] = rstd, statistics[2] = rest; }
  __device__ T operator()(T x) const { return std::fma(x - mean, rstd, rest); }

  T mean = 0, rstd = 0, rest = 0;
};

/// Statistics of one of the runs that `each` shows, where squares are of no use.
template <class T, class Each>
__device__ RowStatistics<T> scaled_statistics(bool centre, double eps, double count, int run, const Each& each) {
  constexpr int vec = Pack<T>::size;
  const auto each_value = [&](auto f) {
    each([&](int of, const T(&values)[vec], int valid) {
      for (int k = 0; k < vec; ++k)
        if (of == run && k < valid) f(static_cast<double>(values[k]));
    });
  };
  return scaled_moments<RowThreads>(centre, count, count, each_value).template statistics<T>(eps);
}

/// The statistics of n runs: each(f) calls f(run, values, how many of them) for the packs of a thread. Moments about 0 do where the mean is within
/// half a deviation of it; else a second pass is about the mean.
template <class T, int n, class Each>
__device__ void measure_runs(bool centre, double eps, const double (&counts)[n], const Each& each, Normaliser<T> (&result)[n]) {
  constexpr int vec = Pack<T>::size;
  T origins[n] = {};
  RowStatistics<T> s[n];
  bool far = false, good = true;
  const auto pass = [&](bool last) {
    T parts[2 * n] = {};
    double totals[2 * n];
    each([&](int run, const T(&values)[vec], int valid) {
      for (int k = 0; k < vec; ++k) {
        if (k >= valid) continue;
        const T d = values[k] - origins[run];
        parts[2 * run] += d;
        parts[2 * run + 1] = std::fma(d, d, parts[2 * run + 1]);
      }
    });
    RowThreads::sum(parts, totals);
#pragma unroll
    for (int run = 0; run < n; ++run) {
      const double origin = static_cast<double>(origins[run]), offset = centre ? totals[2 * run] / counts[run] : 0;
      double var = totals[2 * run + 1] / counts[run] - offset * offset;
      if (var < 0) var = 0;  // rounding; a NaN stays
      s[run].mean = static_cast<T>(origin + offset);
      s[run].shift = static_cast<T>(origin - static_cast<double>(s[run].mean) + offset);
      s[run].rstd = static_cast<T>(1 / std::sqrt(var + eps));
      if (!last && offset * offset > var / 4) far = true;
      if (!trusted<T>(var, eps)) good = false;
    }
  };
  pass(false);
  if (far) {
    for (int run = 0; run < n; ++run) origins[run] = s[run].mean;
    good = true;
    pass(true);
  }
  if (!good) {
    RowStatistics<T> anew[n];
#pragma unroll 1
    for (int run = 0; run < n; ++run) anew[run] = scaled_statistics<T>(centre, eps, counts[run], run, each);
    for (int run = 0; run < n; ++run) s[run] = anew[run];
  }
  for (int run = 0; run < n; ++run) result[run] = Normaliser<T>::of(s[run]);
}

/// A row of a_x, and of a_h where it is an array of its own.
template <class T, Cell cell, TermNorm norm, bool kHeld>
struct SummedInputs {
  using S = Segments<cell, norm>;
  static constexpr int vec = Pack<T>::size;

  __device__ SummedInputs(const RowColumns<T, kHeld>& of, dptr<const T> x_row, dptr<const T> h_row) : columns(of), a_x(x_row), a_h(h_row) {
    if constexpr (kHeld)
      columns.each([&](int64_t j) {
#pragma unroll
        for (int gate = 0; gate < S::gates; ++gate) {
          columns.get(a_x + gate * columns.hidden, j, x_held[gate]);
          if constexpr (S::two) columns.get(a_h + gate * columns.hidden, j, h_held[gate]);
        }
      });
  }

  __device__ void x(int gate, int64_t j, T (&values)[vec]) const {
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) values[k] = x_held[gate][k];
    else
      columns.get(a_x + gate * columns.hidden, j, values);
  }
  __device__ void h(int gate, int64_t j, T (&values)[vec]) const {
    if constexpr (kHeld)
      for (int k = 0; k < vec; ++k) values[k] = h_held[gate][k];
    else
      columns.get(a_h + gate * columns.hidden, j, values);
  }

  /// The statistics of all runs.
  __device__ void measure(bool centre, double eps, Normaliser<T> (&result)[S::runs]) const {
    double counts[S::runs];
    for (int run = 0; run < S::runs; ++run) counts[run] = static_cast<double>(S::size(run % S::count) * columns.hidden);
    measure_runs<T>(
        centre, eps, counts,
        [&](auto f) {
          columns.each([&](int64_t j) {
#pragma unroll
            for (int gate = 0; gate < S::gates; ++gate) {
              T values[vec];
              x(gate, j, values);
              f(S::of(gate), values, columns.count(j));
              if constexpr (norm == TermNorm::terms) {
                h(gate, j, values);
                f(S::count + S::of(gate), values, columns.count(j));
              }
            }
          });
        },
        result);
  }

  const RowColumns<T, kHeld>& columns;
  dptr<const T> a_x, a_h;
  T x_held[kHeld ? S::gates : 1][vec] = {}, h_held[kHeld && S::two ? S::gates : 1][vec] = {};
};

}  // namespace lamina::kernels::cuda
