#pragma once
// The row half of NormKernels on CUDA. The channel half is to come; norm.cu will join them then.

#include "kernels/norm.h"

namespace lamina::kernels::cuda {

/// As NormKernels::row_forward and row_backward, all pointers to device memory; T = float or double. They return when the work is queued on stream().
template <class T>
void row_norm_forward(const RowNorm& spec, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd);
template <class T>
void row_norm_backward(const RowNorm& spec, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain, T* dbias);

}  // namespace lamina::kernels::cuda
