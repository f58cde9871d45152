#pragma once
// Softmax over the middle of [outer, axis, inner], and cross-entropy on class indices.

#include <cstdint>

namespace lamina::kernels {

template <class T>
struct SoftmaxKernels {
  virtual ~SoftmaxKernels() = default;

  /// y = softmax or log-softmax, the maximum subtracted first. A row of all -inf gives NaN.
  virtual void softmax(bool log, int64_t outer, int64_t axis, int64_t inner, const T* x, T* y) const = 0;
  /// From the output y: dx = y (dy - sum(y dy)), or for log dx = dy - exp(y) sum(dy).
  virtual void softmax_backward(bool log, int64_t outer, int64_t axis, int64_t inner, const T* y, const T* dy, T* dx) const = 0;

  /// loss[n] = -(1 - smoothing) log p[n, label] - smoothing mean_k log p[n, k]; 0 where label == ignore. Logits are [rows, classes]; lse [rows] is
  /// log-sum-exp per row, written. Labels are as in kernels/loss.h.
  virtual void cross_entropy(int64_t rows, int64_t classes, const T* logits, const int64_t* labels, int64_t ignore, double smoothing, T* loss,
                             T* lse) const = 0;
  /// dlogits[n, k] = dloss[n] (softmax - target), rows with label == ignore 0. dloss is [rows].
  virtual void cross_entropy_backward(int64_t rows, int64_t classes, const T* logits, const T* lse, const int64_t* labels, int64_t ignore,
                                      double smoothing, const T* dloss, T* dlogits) const = 0;
};

}  // namespace lamina::kernels
