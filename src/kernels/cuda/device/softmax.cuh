#pragma once
// What softmax and cross-entropy along rows (softmax.cu) and down columns (softmax_columns.cu) share.

#include <cmath>

#include "kernels/cuda/device/columns.cuh"
#include "kernels/cuda/device/fault.cuh"
#include "kernels/cuda/device/limits.cuh"

namespace lamina::kernels::cuda {

/// The backward of y = softmax or log-softmax: dx = gradient(y, dy, sum of gradient_term).
template <class T>
__device__ T gradient_term(bool log, T y, T dy) {
  return log ? dy : y * dy;
}
template <class T>
__device__ T gradient(bool log, T y, T dy, T total) {
  return log ? std::fma(-std::exp(y), total, dy) : y * (dy - total);
}

/// What cross-entropy asks of every row.
struct Targets {
  int64_t rows, classes;
  dptr<const int64_t> labels;
  int64_t ignore;
  double smoothing;
  FaultReport report;

  /// Writes the results of a row x: top is its largest logit, log_sum the logarithm of the sum of exponentials about it, `below` the sum of logits
  /// about it. Differences to the largest logit are formed before anything is rounded.
  template <class T>
  __device__ void store_loss(int64_t row, dptr<const T> x, T top, double log_sum, double below, dptr<T> loss, dptr<T> lse) const {
    lse[row] = static_cast<T>(static_cast<double>(top) + log_sum);
    const int64_t label = labels[row];
    if (label == ignore || !report.in_range(row, label, classes)) {
      loss[row] = 0;
    } else {
      double value = (1 - smoothing) * (log_sum - (static_cast<double>(x[label]) - static_cast<double>(top)));
      // Only then do the other classes count: a logit of -inf may stand there otherwise.
      if (smoothing != 0) value += smoothing * (log_sum - below / static_cast<double>(classes));
      loss[row] = static_cast<T>(value);
    }
  }
};

/// A row's gradient: dlogit = exponential * scale + floor, less of_label for the label's. exp(x - lse) sums to 1 but for the rounding of the saved
/// lse, which is not small beside large logits; dividing by the sum removes it.
template <class T>
struct LogitGradient {
  __device__ LogitGradient(const Targets& targets, double dloss, double sum)
      : scale(static_cast<T>(dloss / sum)),
        floor(static_cast<T>(-dloss * targets.smoothing / static_cast<double>(targets.classes))),
        of_label(static_cast<T>(dloss * (1 - targets.smoothing))) {}
  __device__ T operator()(T exponential, bool is_label) const {
    const T value = std::fma(exponential, scale, floor);
    return is_label ? value - of_label : value;
  }
  T scale, floor, of_label;
};

/// Whether so many rows, each too long for registers, leave most of a GPU idle unless they are cut into parts. softmax_columns.cu does that.
template <class T>
bool few_long_rows(int64_t rows, int64_t width);

template <class T>
void softmax_columns(const Op& op, bool log, const ColumnTiles& tiles, const T* x, T* y);
template <class T>
void softmax_columns_backward(const Op& op, bool log, const ColumnTiles& tiles, const T* y, const T* dy, T* dx);
template <class T>
void cross_entropy_columns(const Op& op, const Targets& targets, const T* logits, T* loss, T* lse);
template <class T>
void cross_entropy_columns_backward(const Op& op, const Targets& targets, const T* logits, const T* lse, const T* dloss, T* dlogits);

}  // namespace lamina::kernels::cuda
