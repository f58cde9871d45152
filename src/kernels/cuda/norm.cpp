#include "kernels/cuda/norm.h"

#include "kernels/cuda/backend.h"

namespace lamina::kernels {

namespace {

template <class T>
struct CudaNorm final : NormKernels<T> {
  void row_forward(const RowNorm& spec, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd) const override {
    cuda::row_norm_forward(spec, x, gain, bias, y, mean, rstd);
  }
  void row_backward(const RowNorm& spec, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain,
                    T* dbias) const override {
    cuda::row_norm_backward(spec, x, gain, mean, rstd, dy, dx, dgain, dbias);
  }
  void channel_statistics(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var, T* rstd) const override {
    cuda::channel_statistics(spec, x, mean, shift, var, rstd);
  }
  void channel_rstd(const ChannelNorm& spec, const T* var, T* rstd) const override { cuda::channel_rstd(spec, var, rstd); }
  void channel_forward(const ChannelNorm& spec, const T* x, const T* mean, const T* shift, const T* rstd, const T* gain, const T* bias,
                       T* y) const override {
    cuda::channel_forward(spec, x, mean, shift, rstd, gain, bias, y);
  }
  void channel_backward(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                        T* dgain, T* dbias) const override {
    cuda::channel_backward(spec, given_statistics, x, gain, mean, rstd, dy, dx, dgain, dbias);
  }
  void move_running(const RunningChannels<T>& work) const override { cuda::move_running(work); }
};

const CudaNorm<float> norm_f32;
const CudaNorm<double> norm_f64;

}  // namespace

template <>
const NormKernels<float>& CudaBackend::norm<float>() {
  return norm_f32;
}
template <>
const NormKernels<double>& CudaBackend::norm<double>() {
  return norm_f64;
}

}  // namespace lamina::kernels
