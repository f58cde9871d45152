#pragma once
// The parts of ElementwiseKernels for float and double that are compiled for each instruction set (elementwise_unary.cpp, elementwise_binary.cpp).

#include "kernels/elementwise.h"

namespace lamina::kernels::cpu {

template <class T>
void unary(Unary op, int64_t n, const T* x, T* y, double p);
template <class T>
void unary_backward(Unary op, int64_t n, const T* x, const T* y, const T* dy, T* dx, double p);

template <class T>
void binary(Binary op, const Broadcast& space, const T* a, const T* b, T* z);
template <class T>
void accumulate(int64_t n, const T* x, T* y);

}  // namespace lamina::kernels::cpu
