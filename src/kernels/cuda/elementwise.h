#pragma once
// The parts of ElementwiseKernels<float> and <double> that are in elementwise_unary.cu.

#include "kernels/elementwise.h"

namespace lamina::kernels::cuda {

template <class T>
void unary(Unary op, int64_t n, const T* x, T* y, double p);
template <class T>
void unary_backward(Unary op, int64_t n, const T* x, const T* y, const T* dy, T* dx, double p);

}  // namespace lamina::kernels::cuda
