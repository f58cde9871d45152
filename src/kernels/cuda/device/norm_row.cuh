#pragma once
// What the kernels of the row normaliser share: statistics, and which gain belongs to which element.

#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/row.cuh"
#include "kernels/norm.h"

namespace lamina::kernels::cuda {

inline __host__ __device__ int64_t measured_width(const RowNorm& spec) { return spec.measured > 0 ? spec.measured : spec.width; }

/// Statistics of the first `measured` entries where squares are of no use.
template <class T, class Row>
__device__ RowStatistics<T> measure_scaled(bool centre, double eps, int64_t measured, const Row& row) {
  const auto each = [&](auto f) {
    Row::each(measured, [&](int item, int64_t column) {
      T values[Row::vec];
      row.get(item, column, values);
      for (int k = 0; k < Row::vec; ++k)
        if (column + k < measured) f(static_cast<double>(values[k]));
    });
  };
  const double count = static_cast<double>(measured);
  return scaled_moments<typename Row::Group>(centre, count, count, each).template statistics<T>(eps);
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
  if (!trusted<T>(var, eps)) return measure_scaled<T>(centre, eps, measured, row);
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

/// A row's dx = rstd (a - mean(a) - x-hat mean(a x-hat)) with a = gain dy, means over the measured entries; x-hat = (x - mean) rstd + offset, where
/// the offset is what rounding the saved mean costs.
template <class T>
class RowGradient {
 public:
  static constexpr int sums = 3;  // of x - mean, a, a (x - mean) rstd

  __device__ RowGradient(const RowNorm& spec, int64_t row, dptr<const T> mean, dptr<const T> rstd)
      : centre_(spec.centre), measured_(measured_width(spec)), mean_(spec.centre ? T(mean[row]) : T(0)), rstd_(rstd[row]) {}

  /// Adds an element's terms of the sums.
  __device__ void add(int64_t column, T x, T a, T (&terms)[sums]) const {
    const T d = x - mean_;
    if (column < measured_) terms[0] += d;
    terms[1] += a;
    terms[2] += a * (d * rstd_);
  }
  /// Takes the sums over the row.
  __device__ void set(const double (&totals)[sums]) {
    const double count = static_cast<double>(measured_), shift = centre_ ? totals[0] / count : 0;
    const double exact_offset = -shift * static_cast<double>(rstd_);
    offset = static_cast<T>(exact_offset);
    mean_a_ = static_cast<T>(centre_ ? totals[1] / count : 0);
    mean_ax_ = static_cast<T>((totals[2] + totals[1] * exact_offset) / count);
  }
  __device__ T xhat(T x) const { return std::fma(x - mean_, rstd_, offset); }
  __device__ T dx(int64_t column, T xhat, T dy, T gain) const {
    const bool inside = column < measured_;
    return rstd_ * std::fma(-xhat, inside ? mean_ax_ : T(0), std::fma(dy, gain, inside ? -mean_a_ : T(0)));
  }

  T offset = 0;

 private:
  bool centre_;
  int64_t measured_;
  T mean_, rstd_, mean_a_ = 0, mean_ax_ = 0;
};

}  // namespace lamina::kernels::cuda
