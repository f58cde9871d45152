#pragma once
// The functions of one variable and their derivatives, dispatched over instruction sets; see ElementwiseKernels::unary and unary_backward.

#include "kernels/elementwise.h"

namespace lamina::kernels::cpu {

// T = float or double.
template <class T>
void unary(Unary op, int64_t n, const T* x, T* y, double p);
template <class T>
void unary_backward(Unary op, int64_t n, const T* x, const T* y, const T* dy, T* dx, double p);

}  // namespace lamina::kernels::cpu
