#pragma once
// lamina's own products, beside BLAS. All of them give the same bits for every thread count and may run inside a parallel loop (then serially).

#include "kernels/gemm.h"

namespace lamina::kernels::cpu {

/// Any shape and layout, as GemmKernels::gemm; fast where one of m, n, k is small or everything is in cache.
///   B transposed (it stands as [n,k]): every output is a dot product of two contiguous rows (the forward pass of a linear layer).
///   B as it stands: rows of C are sums of multiples of rows of B (the gradient for the input with few rows, for the weights with a small batch).
template <class T>
void own_gemm(int64_t m, int64_t n, int64_t k, Matrix<T> a, Matrix<T> b, T beta, T* c, int64_t ldc, const T* bias);

/// Any shape and layout; fast for products of middling size, with every thread working on the same part of a weight that the updates give it.
template <class T>
void blocked_gemm(int64_t m, int64_t n, int64_t k, Matrix<T> a, Matrix<T> b, T beta, T* c, int64_t ldc, const T* bias);

/// Columns of B that stand together when it is packed: two cache lines.
template <class T>
constexpr int64_t kPanel = 128 / static_cast<int64_t>(sizeof(T));

template <class T>
Packed<T> pack_panels(int64_t k, int64_t n, Matrix<T> b);
template <class T>
void packed_gemm(int64_t m, Matrix<T> a, const Packed<T>& b, T beta, T* c, int64_t ldc, const T* bias);

/// C = beta C + bias on every row; what remains of a product with k = 0.
template <class T>
void scale_and_bias(int64_t m, int64_t n, T beta, T* c, int64_t ldc, const T* bias);

}  // namespace lamina::kernels::cpu
