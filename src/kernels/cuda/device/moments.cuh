#pragma once
// Statistics whose squares overflow or vanish in T, or of values that are not all finite: they are scaled by the largest of them first, and eps with
// them. Every normaliser falls back on this one; what kernels/norm.h promises of the ends is here.

#include <cmath>

#include "kernels/cuda/device/limits.cuh"
#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

/// mean rounded to T is what the caller keeps; shift is what the rounding lost, so x-hat is (x - mean - shift) rstd.
template <class T>
struct RowStatistics {
  T mean = 0, shift = 0, rstd = 0;
};

/// Whether statistics taken the plain way are good: this variance has its digits in T.
template <class T>
__device__ bool trusted(double var, double eps) {
  return var <= Bounds<T>::most && var + eps >= Bounds<T>::trustworthy;
}

/// No deviation gives 0, one that has no inverse in T gives NaN.
template <class T>
__device__ T inverse(double deviation) {
  if (!(deviation <= 1 / Bounds<T>::least)) return Bounds<T>::not_a_number;
  return deviation >= Bounds<T>::least ? static_cast<T>(1 / deviation) : T(0);
}

/// Mean and variance of values that are `scale` times as large.
struct ScaledMoments {
  double scale, mean, var;

  template <class T>
  __device__ RowStatistics<T> statistics(double eps) const {
    const double scaled_eps = std::sqrt(eps) / scale;
    RowStatistics<T> result;
    result.mean = static_cast<T>(mean * scale);
    result.shift = static_cast<T>(mean * scale - static_cast<double>(result.mean));
    result.rstd = inverse<T>(scale * std::sqrt(var + scaled_eps * scaled_eps));
    return result;
  }
};

/// Of the `count` values that a group of threads has: each(f) calls f(value) for those of a thread, in double; Group adds up. The squares' sum is
/// divided by `freedom`.
template <class Group, class Each>
__device__ ScaledMoments scaled_moments(bool centre, double count, double freedom, const Each& each) {
  double scale = 0;
  each([&](double value) {
    if (std::fabs(value) > scale) scale = std::fabs(value);
  });
  scale = Group::largest(scale);
  if (!(scale > 0) || scale == Bounds<double>::infinity) scale = 1;
  double mean = 0, sum[1] = {};
  if (centre) {
    each([&](double value) { sum[0] += value / scale; });
    Group::sum(sum);
    mean = sum[0] / count;
  }
  sum[0] = 0;
  each([&](double value) {
    const double d = value / scale - mean;
    sum[0] += d * d;
  });
  Group::sum(sum);
  return {scale, mean, sum[0] / freedom};
}

}  // namespace lamina::kernels::cuda
