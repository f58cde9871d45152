#pragma once
// The one matrix product. Row-major views with leading dimensions, so that heads, chunks and concatenations need no copies.

#include <cstdint>
#include <memory>

namespace lamina::kernels {

/// A view of a matrix that stands row-major in memory, `ld` elements from row to row. `transposed` means that the operand is the transpose of
/// what stands in memory. ld >= 1 also for empty matrices.
template <class T>
struct Matrix {
  const T* data = nullptr;
  int64_t ld = 1;
  bool transposed = false;
};

/// A right operand laid out once for many products: columns in panels on the CPU; on CUDA a view of the operand itself, which must stay. Made by
/// pack().
template <class T>
struct Packed {
  int64_t k = 0, n = 0;
  std::shared_ptr<T> data;
  int64_t ld = 1;  // of the view, as in Matrix
  bool transposed = false;
  std::shared_ptr<const uint16_t> split = {};  // the same for a CPU's matrix unit, or null: see kernels/cpu/gemm_split.h
};

template <class T>
struct GemmKernels {
  virtual ~GemmKernels() = default;

  /// C[m,n] = A[m,k] B[k,n] + beta C (+ bias[n] on every row, if given). beta = 0 writes without reading C. m, n, k may be 0;
  /// k = 0 gives beta C + bias. The implementation (own kernels or BLAS) is chosen by shape. On the CPU, with A transposed, B not and k <= 16 (the
  /// weight gradient of a small batch), each element is a chain of fused multiply-adds over k in order: see RankUpdate.
  virtual void gemm(int64_t m, int64_t n, int64_t k, Matrix<T> a, Matrix<T> b, T beta, T* c, int64_t ldc, const T* bias = nullptr) const = 0;

  /// `count` products of the same shape; operand i starts at data + i * stride (a stride of 0 shares the operand).
  virtual void gemm_batched(int64_t count, int64_t m, int64_t n, int64_t k, Matrix<T> a, int64_t stride_a, Matrix<T> b, int64_t stride_b, T beta,
                            T* c, int64_t ldc, int64_t stride_c) const = 0;

  /// `rows`: what most products with it will have.
  virtual Packed<T> pack(int64_t k, int64_t n, Matrix<T> b, int64_t rows = 0) const = 0;
  virtual void gemm(int64_t m, Matrix<T> a, const Packed<T>& b, T beta, T* c, int64_t ldc, const T* bias = nullptr) const = 0;
};

}  // namespace lamina::kernels
