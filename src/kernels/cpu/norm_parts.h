#pragma once
// The two halves of NormKernels on the CPU, which norm.cpp joins, and what they share.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/norm.h"

namespace lamina::kernels {

/// 1/sqrt(var + eps).
template <class T>
T rstd_of(double var, double eps) {
  return static_cast<T>(1 / std::sqrt(var + eps));
}

/// mean rounded to T is what the caller keeps; shift is what the rounding lost. At a large offset it is not small against the deviations, so x-hat
/// is (x - mean - shift) rstd.
template <class T>
struct Statistics {
  T mean = 0, shift = 0, rstd = 0;
};

/// Whether a variance that was summed in T can be trusted: its squares neither overflowed nor vanished, nor was there an inf or a NaN.
template <class T>
bool trustworthy(double var, double eps) {
  constexpr double lowest = static_cast<double>(std::numeric_limits<T>::min()) / std::numeric_limits<T>::epsilon();
  return var <= static_cast<double>(std::numeric_limits<T>::max()) && var + eps >= lowest;
}

/// The statistics where it cannot: values are scaled by their largest first, and eps with them. each(f) calls f(value) for all `count` values;
/// `freedom` divides the sum of squares; var receives the variance, if not null. Rare, so plain loops.
template <class T, class Each>
Statistics<T> scaled_statistics(bool centre, double eps, double count, double freedom, Each each, double* var = nullptr) {
  double scale = 0;
  each([&](T value) { scale = std::max(scale, std::abs(static_cast<double>(value))); });
  if (!(scale > 0) || !std::isfinite(scale)) scale = 1;
  double mean = 0, square = 0;
  if (centre) each([&](T value) { mean += static_cast<double>(value) / scale; });
  mean /= count;
  each([&](T value) {
    const double d = static_cast<double>(value) / scale - mean;
    square += d * d;
  });
  const double scaled_eps = std::sqrt(eps) / scale, deviation = scale * std::sqrt(square / freedom + scaled_eps * scaled_eps);
  if (var) *var = square / freedom * scale * scale;
  Statistics<T> result;
  result.mean = static_cast<T>(mean * scale);
  result.shift = static_cast<T>(mean * scale - static_cast<double>(result.mean));
  constexpr double least = static_cast<double>(std::numeric_limits<T>::min());
  if (!(deviation <= 1 / least))
    result.rstd = std::numeric_limits<T>::quiet_NaN();
  else if (deviation >= least)
    result.rstd = static_cast<T>(1 / deviation);
  return result;
}

/// Whether a result of `elements`, written in runs of `run`, goes to memory past the caches, in aligned vectors: a backward pass walks three arrays
/// of this size, too much to stay in a cache, and storing there would read its lines first. Forward passes do as their backward ones: the memory of y
/// often becomes that of dx, and written through the caches and past them in turn it took half as long again. A line that a run leaves in part is
/// written in two ways, which costs more than that (twice the time at 100 elements), unless runs are long.
template <class T>
bool streams(const T* result, int64_t elements, int64_t run) {
  constexpr int64_t element = sizeof(T), long_run = 3072;
  return 3 * elements * element >= int64_t{32} << 20 && (run * element % 64 == 0 || run * element >= long_run) &&
         reinterpret_cast<uintptr_t>(result) % 64 == 0;
}

template <class T>
struct RowNormPart {
  virtual ~RowNormPart() = default;
  virtual void forward(const RowNorm& spec, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd) const = 0;
  virtual void backward(const RowNorm& spec, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain,
                        T* dbias) const = 0;
};

template <class T>
struct ChannelNormPart {
  virtual ~ChannelNormPart() = default;
  virtual void statistics(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var, T* rstd) const = 0;
  virtual void forward(const ChannelNorm& spec, const T* x, const T* mean, const T* shift, const T* rstd, const T* gain, const T* bias,
                       T* y) const = 0;
  virtual void backward(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                        T* dgain, T* dbias) const = 0;
  virtual void move_running(const RunningChannels<T>& running) const = 0;
};

template <class T>
const RowNormPart<T>& row_norm_part();  // norm_row.cpp
template <class T>
const ChannelNormPart<T>& channel_norm_part();  // norm_channel.cpp

template <>
const RowNormPart<float>& row_norm_part();
template <>
const RowNormPart<double>& row_norm_part();
template <>
const ChannelNormPart<float>& channel_norm_part();
template <>
const ChannelNormPart<double>& channel_norm_part();

}  // namespace lamina::kernels
