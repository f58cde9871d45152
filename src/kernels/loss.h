#pragma once
// From losses per item to one loss and back, without the host looking at how many items count.

#include <cstdint>

namespace lamina::kernels {

/// T = float or double. Labels are class indices; those equal to `ignore` do not count. On the CPU the caller has checked the others; on CUDA one
/// that is out of range is reported (kernels/cuda/fault.h), and its item's loss and gradient are 0.
template <class T>
struct LossKernels {
  virtual ~LossKernels() = default;

  /// *y = the sum of n losses, in double, over *divisor: for a mean how many labels count (at least 1; labels null: n), else 1. Both are written.
  virtual void reduce(bool mean, int64_t n, const T* losses, const int64_t* labels, int64_t ignore, T* y, double* divisor) const = 0;
  /// dlosses[i] = *dy / *divisor.
  virtual void reduce_backward(int64_t n, const T* dy, const double* divisor, T* dlosses) const = 0;

  /// losses[r] = -log_probs[r, labels[r]], 0 where ignored; log_probs is [rows, classes].
  virtual void nll(int64_t rows, int64_t classes, const T* log_probs, const int64_t* labels, int64_t ignore, T* losses) const = 0;
  /// dlog_probs [rows, classes] = -dlosses[r] at the label, else 0.
  virtual void nll_backward(int64_t rows, int64_t classes, const T* dlosses, const int64_t* labels, int64_t ignore, T* dlog_probs) const = 0;
};

}  // namespace lamina::kernels
