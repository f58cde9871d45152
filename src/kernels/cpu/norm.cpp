#include <cmath>

#include "kernels/cpu/norm_parts.h"
#include "kernels/kernels.h"

namespace lamina::kernels {

namespace {

template <class T>
struct CpuNorm final : NormKernels<T> {
  void row_forward(const RowNorm& spec, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd) const override {
    row_norm_part<T>().forward(spec, x, gain, bias, y, mean, rstd);
  }
  void row_backward(const RowNorm& spec, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain,
                    T* dbias) const override {
    row_norm_part<T>().backward(spec, x, gain, mean, rstd, dy, dx, dgain, dbias);
  }
  void channel_statistics(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var, T* rstd) const override {
    channel_norm_part<T>().statistics(spec, x, mean, shift, var, rstd);
  }
  void channel_rstd(const ChannelNorm& spec, const T* var, T* rstd) const override {
    for (int64_t c = 0; c < spec.channels; ++c) rstd[c] = spec.divide ? rstd_of<T>(static_cast<double>(var[c]), spec.eps) : T{1};
  }
  void channel_forward(const ChannelNorm& spec, const T* x, const T* mean, const T* shift, const T* rstd, const T* gain, const T* bias,
                       T* y) const override {
    channel_norm_part<T>().forward(spec, x, mean, shift, rstd, gain, bias, y);
  }
  void channel_backward(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                        T* dgain, T* dbias) const override {
    channel_norm_part<T>().backward(spec, given_statistics, x, gain, mean, rstd, dy, dx, dgain, dbias);
  }
  void move_running(const RunningChannels<T>& running) const override { channel_norm_part<T>().move_running(running); }
};

const CpuNorm<float> norm_f32;
const CpuNorm<double> norm_f64;

}  // namespace

template <>
const NormKernels<float>& CpuBackend::norm<float>() {
  return norm_f32;
}
template <>
const NormKernels<double>& CpuBackend::norm<double>() {
  return norm_f64;
}

}  // namespace lamina::kernels
