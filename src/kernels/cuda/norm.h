#pragma once
// The two halves of NormKernels on CUDA, which norm.cpp joins. As there, but all pointers are to device memory; T = float or double. They return when
// the work is queued on stream().

#include "kernels/cuda/launch.h"
#include "kernels/norm.h"

namespace lamina::kernels::cuda {

// norm_row.cu
template <class T>
void row_norm_forward(const RowNorm& spec, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd);
template <class T>
void row_norm_backward(const RowNorm& spec, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain, T* dbias);

// norm_row_parts.cu, for norm_row.cu
/// Whether so few rows, each so long, leave most of a GPU idle unless several blocks share a row.
bool few_long_rows(const RowNorm& spec);
/// `packs`: whether 16-byte accesses fit. offsets as the row kernel's, or null.
template <class T>
void row_norm_forward_in_parts(const Op& op, const RowNorm& spec, bool packs, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd);
template <class T>
void row_norm_dx_in_parts(const Op& op, const RowNorm& spec, bool packs, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                          T* offsets);

// norm_channel.cu
template <class T>
void channel_statistics(const ChannelNorm& spec, const T* x, T* mean, T* shift, T* var, T* rstd);
template <class T>
void channel_rstd(const ChannelNorm& spec, const T* var, T* rstd);
template <class T>
void channel_forward(const ChannelNorm& spec, const T* x, const T* mean, const T* shift, const T* rstd, const T* gain, const T* bias, T* y);
template <class T>
void channel_backward(const ChannelNorm& spec, bool given_statistics, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx,
                      T* dgain, T* dbias);

// norm_running.cu
template <class T>
void move_running(const RunningChannels<T>& work);

/// Sets n elements to 0; null is none.
template <class T>
void zero(const Op& op, T* memory, int64_t n) {
  if (memory && n > 0) check(op, cudaMemsetAsync(memory, 0, static_cast<size_t>(n) * sizeof(T), stream()), "cudaMemsetAsync");
}

}  // namespace lamina::kernels::cuda
