#pragma once
// The two halves of NormKernels on the CPU; norm.cpp joins them.

#include "kernels/norm.h"

namespace lamina::kernels {

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
  virtual void statistics(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var) const = 0;
  virtual void forward(const ChannelNorm& spec, const T* x, const T* mean, const T* shift, const T* var, const T* gain, const T* bias, T* y,
                       T* rstd) const = 0;
  virtual void backward(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                        T* dgain, T* dbias) const = 0;
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
