#pragma once
// Between gemm.cpp, which calls cuBLAS, and gemm_bias.cu, which is a kernel.

#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

/// `count` matrices C [m, n], stride_c apart: C = beta C + bias, on every row. bias may be null; C is not read when beta is 0.
template <class T>
void scale_and_bias(const Op& op, int64_t count, int64_t m, int64_t n, T beta, T* c, int64_t ldc, int64_t stride_c, const T* bias);

}  // namespace lamina::kernels::cuda
