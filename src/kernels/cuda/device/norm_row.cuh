#pragma once
// What the kernels of the row normaliser share: statistics, and which gain belongs to which element.

#include <cmath>

#include "kernels/cuda/device/limits.cuh"
#include "kernels/cuda/device/row.cuh"
#include "kernels/norm.h"

namespace lamina::kernels::cuda {

/// mean rounded to T is what the caller keeps; shift is what the rounding lost, so x-hat is (x - mean - shift) rstd.
template <class T>
struct RowStatistics {
  T mean = 0, shift = 0, rstd = 0;
};

__device__ inline int64_t measured_width(const RowNorm& spec) { return spec.measured > 0 ? spec.measured : spec.width; }

/// The same statistics where squares overflow or vanish in T, or where the row is not finite: values are scaled by their largest first, and eps with
/// them.
template <class T, class Row>
__device__ RowStatistics<T> measure_scaled(bool centre, double eps, int64_t measured, const Row& row) {
  double scale = 0;
  Row::each(measured, [&](int item, int64_t column) {
    T values[Row::vec];
    row.get(item, column, values);
    for (int k = 0; k < Row::vec; ++k) {
      const double size = std::fabs(static_cast<double>(values[k]));
      if (column + k < measured && size > scale) scale = size;
    }
  });
  scale = Row::Group::largest(scale);
  if (!(scale > 0) || scale == Bounds<T>::infinity) scale = 1;
  const double count = static_cast<double>(measured);
  double mean = 0, sums[1] = {};
  if (centre) {
    add_up<double>(row, measured, sums, [&](T value, double(&terms)[1]) { terms[0] += static_cast<double>(value) / scale; });
    mean = sums[0] / count;
  }
  add_up<double>(row, measured, sums, [&](T value, double(&terms)[1]) {
    const double d = static_cast<double>(value) / scale - mean;
    terms[0] += d * d;
  });
  const double scaled_eps = std::sqrt(eps) / scale, deviation = scale * std::sqrt(sums[0] / count + scaled_eps * scaled_eps);
  RowStatistics<T> result;
  result.mean = static_cast<T>(mean * scale);
  result.shift = static_cast<T>(mean * scale - static_cast<double>(result.mean));
  if (!(deviation <= 1 / Bounds<T>::least))
    result.rstd = Bounds<T>::not_a_number;
  else if (deviation >= Bounds<T>::least)
    result.rstd = static_cast<T>(1 / deviation);
  return result;
}

/// Statistics of the first `measured` entries in two passes; `origin`, the first of them, keeps the first sum small at a large offset.
template <class T, class Row>
__device__ RowStatistics<T> measure(bool centre, double eps, int64_t measured, const Row& row, T origin) {
  const double count = static_cast<double>(measured);
  RowStatistics<T> result;
  double var = 0;
  if (centre) {
    double offset[1], moments[2];
    add_up<T>(row, measured, offset, [&](T value, T(&terms)[1]) { terms[0] += value - origin; });
    const T first_mean = static_cast<T>(static_cast<double>(origin) + offset[0] / count);
    add_up<T>(row, measured, moments, [&](T value, T(&terms)[2]) {
      const T d = value - first_mean;
      terms[0] += d;
      terms[1] += d * d;
    });
    const double residual = moments[0] / count;
    result.mean = static_cast<T>(static_cast<double>(first_mean) + residual);
    result.shift = static_cast<T>(static_cast<double>(first_mean) - static_cast<double>(result.mean) + residual);
    var = moments[1] / count - residual * residual;
    if (var < 0) var = 0;  // rounding; a NaN stays
  } else {
    double squares[1];
    add_up<T>(row, measured, squares, [&](T value, T(&terms)[1]) { terms[0] += value * value; });
    var = squares[0] / count;
  }
  if (!(var <= Bounds<T>::most) || var + eps < Bounds<T>::trustworthy) return measure_scaled<T>(centre, eps, measured, row);
  result.rstd = static_cast<T>(1 / std::sqrt(var + eps));
  return result;
}

/// Whether the gain of an element is that of its column.
inline __host__ __device__ bool affine_by_column(const RowNorm& spec) { return spec.affine_inner == 1 && spec.affine_count == spec.width; }

/// The entries of gain or bias that the columns of one row use.
class AffineColumns {
 public:
  __device__ AffineColumns(const RowNorm& spec, int64_t row)
      : count_(spec.affine_count), inner_(spec.affine_inner), by_column_(affine_by_column(spec)) {
    if (by_column_ || count_ == 0) return;
    const int64_t start = row * spec.width;
    first_ = start / inner_ % count_;
    inside_ = start % inner_;
    narrow_ = inner_ + spec.width <= most_narrow && count_ + spec.width <= most_narrow;
  }

  /// The entries for kVec columns; `otherwise` where there are none.
  template <class T, int kVec>
  __device__ void get(std::type_identity_t<dptr<const T>> from, int64_t column, T otherwise, T (&values)[kVec]) const {
    if (from == nullptr || count_ == 0) {
      for (int k = 0; k < kVec; ++k) values[k] = otherwise;
    } else if (by_column_) {
      load(from + column, values);
    } else {
      for (int k = 0; k < kVec; ++k) values[k] = from[index(column + k)];
    }
  }

 private:
  static constexpr int64_t most_narrow = int64_t{1} << 31;
  __device__ int64_t index(int64_t column) const {
    if (!narrow_) return (first_ + (inside_ + column) / inner_) % count_;
    // 32-bit division takes a fraction of the time.
    const auto run = static_cast<uint32_t>(inside_ + column) / static_cast<uint32_t>(inner_);
    return (static_cast<uint32_t>(first_) + run) % static_cast<uint32_t>(count_);
  }

  int64_t count_, inner_, first_ = 0, inside_ = 0;
  bool by_column_, narrow_ = false;
};

}  // namespace lamina::kernels::cuda
