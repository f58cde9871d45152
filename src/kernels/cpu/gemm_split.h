#pragma once
// f32 products on a processor's matrix unit (AMX), which multiplies tiles of bf16 and adds up in f32. Every number is cut in three of bf16, exactly:
// a = a1 + a2 + a3; and a b = a1 b1 + (a1 b2 + a2 b1) + (a1 b3 + a2 b2 + a3 b1) but for less than 2^-23 |a b|, mostly much less (Henry, Tang,
// Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations", arXiv:1904.06376). A tile rounds less
// often than a chain of fused multiply-adds: results are about half as far from the exact ones.
//
// The unit takes numbers below 2^-126 for zero, as all kernels do, and here that concerns the parts of a number and of a product: a number of less
// than 2^-102, and a sum of products of less, loses digits. What holds infinities, NaN or numbers from 2^60 on is computed in f32.

#include <array>
#include <cstdint>
#include <span>

#include "kernels/cpu/gemm_own.h"

namespace lamina::kernels::cpu {

/// As GemmKernels::gemm: the same bits for every thread count; for use inside and outside of parallel loops. Operands whose largest numbers are small
/// (their product below 2^-80) are multiplied in f32, so that no digits are lost then.
void split_gemm(int64_t m, int64_t n, int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c, int64_t ldc, const float* bias);

/// Rows from which on the unit is faster than other kernels: with few of them most of a tile is zeros.
constexpr int64_t kUnitRows = 28;

/// Adds to a packed operand its columns as the unit takes them, if there is one and they are for it.
void add_split(const Matrix<float>& b, Packed<float>& packed);

/// Rows of a, lda apart, and what they are multiplied with.
struct SplitFactors {
  const float* a;
  int64_t lda;
  const Packed<float>* b;
};
/// Panels [begin, end) of C = beta C + bias + the sum of the products, for operands that have `split`, on this thread. A row's result does not depend
/// on the others.
void split_product(int64_t rows, int64_t begin, int64_t end, std::span<const SplitFactors> factors, float beta, float* c, int64_t ldc,
                   const float* bias);

/// Some terms of sums A^T B: `rows` rows of A [., m] and of each B [., n]; null for a B of zeros.
struct SplitTerms {
  const float* a;
  std::array<const float*, 2> b;
  int64_t rows;
};
/// One of two results with the same A: C [m,n] = beta C + A^T B.
struct SplitSums {
  int64_t n;
  float beta;
  float* c;  // null: not wanted
};
/// Blocks [begin, end) of 32 rows of the results, on this thread.
void split_sums(int64_t begin, int64_t end, std::span<const SplitTerms> terms, int64_t m, const std::array<SplitSums, 2>& results);

}  // namespace lamina::kernels::cpu
