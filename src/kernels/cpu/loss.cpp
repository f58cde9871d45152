#include <algorithm>

#include "kernels/kernels.h"

namespace lamina::kernels {

namespace {

template <class T>
struct CpuLoss final : LossKernels<T> {
  void reduce(bool mean, int64_t n, const T* losses, const int64_t* labels, int64_t ignore, T* y, double* divisor) const override {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += losses[i];
    const int64_t counted = labels ? n - std::count(labels, labels + n, ignore) : n;
    *divisor = mean ? static_cast<double>(std::max<int64_t>(counted, 1)) : 1.0;
    *y = static_cast<T>(sum / *divisor);
  }
  void reduce_backward(int64_t n, const T* dy, const double* divisor, T* dlosses) const override {
    std::fill_n(dlosses, n, static_cast<T>(static_cast<double>(*dy) / *divisor));
  }

  void nll(int64_t rows, int64_t classes, const T* log_probs, const int64_t* labels, int64_t ignore, T* losses) const override {
    for (int64_t r = 0; r < rows; ++r) losses[r] = labels[r] == ignore ? T{0} : -log_probs[r * classes + labels[r]];
  }
  void nll_backward(int64_t rows, int64_t classes, const T* dlosses, const int64_t* labels, int64_t ignore, T* dlog_probs) const override {
    std::fill_n(dlog_probs, rows * classes, T{0});
    for (int64_t r = 0; r < rows; ++r)
      if (labels[r] != ignore) dlog_probs[r * classes + labels[r]] = -dlosses[r];
  }
};

}  // namespace

template <>
const LossKernels<float>& CpuBackend::loss<float>() {
  static const CpuLoss<float> kernels;
  return kernels;
}
template <>
const LossKernels<double>& CpuBackend::loss<double>() {
  static const CpuLoss<double> kernels;
  return kernels;
}

}  // namespace lamina::kernels
