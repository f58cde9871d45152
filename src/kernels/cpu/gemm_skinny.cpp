// Products with a small side, where BLAS spends its time on packing: each element of the large operand is read (or written) once, in order.

#include <algorithm>
#include <type_traits>
#include <vector>

#include <lamina/core/parallel.h>
#include "kernels/cpu/gemm_own.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_skinny.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

// Elements of the large operand below which a range is not worth a thread.
constexpr int64_t kGrain = 32768;

// ---- B stands as [n,k]: dot products ----

/// kRows x kCols dot products at once, each in one accumulator, so that an output's bits do not depend on its neighbours.
template <class T, int kRows, int kCols>
HWY_INLINE void dot_tile(int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, const Output<T>& out, int64_t i, int64_t j) {
  Vec<T> sums[kRows][kCols];
  for (auto& row : sums) {
    for (auto& s : row) s = zero<T>();
  }
  for_each_vector<T>(k, [&](auto at) HWY_ATTR {
    Vec<T> rows[kRows];
    for (int r = 0; r < kRows; ++r) rows[r] = at.load(a + r * lda);
    for (int s = 0; s < kCols; ++s) {
      const Vec<T> column = at.load(b + s * ldb);
      for (int r = 0; r < kRows; ++r) sums[r][s] = hn::MulAdd(rows[r], column, sums[r][s]);
    }
  });
  for (int r = 0; r < kRows; ++r) {
    for (int s = 0; s < kCols; ++s) out.c[(i + r) * out.ldc + j + s] = out.start(i + r, j + s) + sum_lanes<T>(sums[r][s]);
  }
}

template <class T, int kCols>
HWY_INLINE void dot_rows(int64_t m, int64_t k, const Matrix<T>& a, const T* b, int64_t ldb, const Output<T>& out, int64_t j) {
  int64_t i = 0;
  for (; i + 4 <= m; i += 4) dot_tile<T, 4, kCols>(k, a.data + i * a.ld, a.ld, b, ldb, out, i, j);
  const T* rest = a.data + i * a.ld;
  if (m - i == 3) dot_tile<T, 3, kCols>(k, rest, a.ld, b, ldb, out, i, j);
  if (m - i == 2) dot_tile<T, 2, kCols>(k, rest, a.ld, b, ldb, out, i, j);
  if (m - i == 1) dot_tile<T, 1, kCols>(k, rest, a.ld, b, ldb, out, i, j);
}

template <class T>
void dot_gemm(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, const Output<T>& out) {
  constexpr int64_t kCols = 4;
  const int64_t blocks = (n + kCols - 1) / kCols, work = kCols * k * std::max<int64_t>(1, m / 4);
  parallel_for(blocks, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) HWY_ATTR {
    int64_t j = begin * kCols;
    const int64_t stop = std::min(n, end * kCols);
    for (; j + kCols <= stop; j += kCols) dot_rows<T, kCols>(m, k, a, b.data + j * b.ld, b.ld, out, j);
    for (; j < stop; ++j) dot_rows<T, 1>(m, k, a, b.data + j * b.ld, b.ld, out, j);
  });
}

// ---- B stands as [k,n]: sums of rows ----

/// `columns` columns of kRows rows of C += A[kRows, kDepth] B[kDepth, columns]; `first`: C starts as beta C + bias.
template <class T, int kRows, int kDepth>
HWY_INLINE void add_rows(bool first, const T* a, int64_t a_row, int64_t a_depth, const T* b, int64_t ldb, const Output<T>& out, int64_t i, int64_t j,
                         int64_t columns) {
  Vec<T> factors[kRows][kDepth];
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < kDepth; ++d) factors[r][d] = set(a[r * a_row + d * a_depth]);
  }
  const Output<T> shifted{out.beta, out.c + j, out.ldc, out.bias ? out.bias + j : nullptr};
  for_each_vector<T>(columns, [&](auto at) HWY_ATTR {
    Vec<T> rows[kDepth];
    for (int d = 0; d < kDepth; ++d) rows[d] = at.load(b + d * ldb + j);
    for (int r = 0; r < kRows; ++r) {
      T* c = shifted.c + (i + r) * out.ldc;
      Vec<T> sum = first ? shifted.start(at, i + r) : at.load(c);
      for (int d = 0; d < kDepth; ++d) sum = hn::MulAdd(factors[r][d], rows[d], sum);
      at.store(c, sum);
    }
  });
}

/// Row block `i` of the columns [j, j + columns) and up to four rows of B.
template <class T, int kRows>
HWY_INLINE void add_block(bool first, int64_t depth, const T* a, int64_t a_row, int64_t a_depth, const T* b, int64_t ldb, const Output<T>& out,
                          int64_t i, int64_t j, int64_t columns) {
  switch (depth) {
    case 1: return add_rows<T, kRows, 1>(first, a, a_row, a_depth, b, ldb, out, i, j, columns);
    case 2: return add_rows<T, kRows, 2>(first, a, a_row, a_depth, b, ldb, out, i, j, columns);
    case 3: return add_rows<T, kRows, 3>(first, a, a_row, a_depth, b, ldb, out, i, j, columns);
    default: return add_rows<T, kRows, 4>(first, a, a_row, a_depth, b, ldb, out, i, j, columns);
  }
}

template <class T>
void row_gemm(int64_t rows_begin, int64_t rows_end, int64_t j, int64_t columns, int64_t k, const Matrix<T>& a, const Matrix<T>& b,
              const Output<T>& out) {
  constexpr int kRows = 4;
  constexpr int64_t kDepth = 4, kColumns = 2048 / sizeof(T) * 2;  // four rows of B and of C stay in the first-level cache
  const int64_t a_row = a.transposed ? 1 : a.ld, a_depth = a.transposed ? a.ld : 1;
  const int64_t chunk = k <= 4 * kDepth ? kRows : rows_end - rows_begin;  // few rows: B is streamed once for all; small k: C is written once
  for (int64_t top = rows_begin; top < rows_end; top += chunk) {
    const int64_t bottom = std::min(rows_end, top + chunk);
    for (int64_t left = j; left < j + columns; left += kColumns) {
      const int64_t width = std::min(kColumns, j + columns - left);
      for (int64_t p = 0; p < k; p += kDepth) {
        const int64_t depth = std::min(kDepth, k - p);
        const T* b_rows = b.data + p * b.ld;
        const auto block = [&]<int rows>(int64_t i, std::integral_constant<int, rows>) HWY_ATTR {
          add_block<T, rows>(p == 0, depth, a.data + i * a_row + p * a_depth, a_row, a_depth, b_rows, b.ld, out, i, left, width);
          return i + rows;
        };
        int64_t i = top;
        while (i + kRows <= bottom) i = block(i, std::integral_constant<int, kRows>());
        if (i + 2 <= bottom) i = block(i, std::integral_constant<int, 2>());
        if (i < bottom) block(i, std::integral_constant<int, 1>());
      }
    }
  }
}

/// Into how many chunks of rows of B a product with few rows is cut. 1: too small, or too few rows.
template <class T>
int64_t row_chunks(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kElements = 65536, kLeastRows = 32;
  return chunks_of<T>(m, n, [&](int64_t chunks) { return k * n >= chunks * kElements && k >= chunks * kLeastRows; });
}

/// Few rows of C, many of B: every thread takes the rows of B that it also takes in dot_gemm and in the update of B. Cut by columns instead, half of
/// a weight would move from core to core twice a step: with 7 MB of weights that costs 0.2 ms where two cores share a cache, and 3.3 ms where not.
template <class T>
void chunked_gemm(int64_t chunks, int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, const Output<T>& out) {
  const Scratch<T> sums(chunks * m * n);
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t top = k * chunk / chunks, bottom = k * (chunk + 1) / chunks;
      const Matrix<T> a_part{a.data + top * (a.transposed ? a.ld : 1), a.ld, a.transposed}, b_part{b.data + top * b.ld, b.ld, false};
      row_gemm<T>(0, m, 0, n, bottom - top, a_part, b_part, Output<T>{T(0), sums.data() + chunk * m * n, n, nullptr});
    }
  });
  add_chunks(chunks, m, n, sums.data(), out);
}

template <class T>
void sum_gemm(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, const Output<T>& out) {
  if (m > 16) {  // rows of C are shared out
    constexpr int64_t kRows = 4;
    parallel_for((m + kRows - 1) / kRows, std::max<int64_t>(1, kGrain / (kRows * n * std::max<int64_t>(1, k / 4))),
                 [&](int64_t begin, int64_t end) HWY_ATTR { row_gemm<T>(begin * kRows, std::min(m, end * kRows), 0, n, k, a, b, out); });
  } else if (const int64_t chunks = row_chunks<T>(m, n, k); chunks > 1) {
    chunked_gemm(chunks, m, n, k, a, b, out);
  } else {  // columns of B and C are
    constexpr int64_t kColumns = 64;
    parallel_for((n + kColumns - 1) / kColumns, std::max<int64_t>(1, kGrain / (kColumns * k)), [&](int64_t begin, int64_t end) HWY_ATTR {
      row_gemm<T>(0, m, begin * kColumns, std::min(n, end * kColumns) - begin * kColumns, k, a, b, out);
    });
  }
}

template <class T>
void own_gemm_on_target(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc, const T* bias) {
  const Output<T> out{beta, c, ldc, bias};
  if (!b.transposed) return sum_gemm(m, n, k, a, b, out);
  if (!a.transposed) return dot_gemm(m, n, k, a, b, out);
  std::vector<T> rows(static_cast<size_t>(m * k));
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < m; ++i) rows[static_cast<size_t>(i * k + p)] = a.data[p * a.ld + i];
  }
  dot_gemm(m, n, k, Matrix<T>{rows.data(), k, false}, b, out);
}

void own_gemm_f32(int64_t m, int64_t n, int64_t k, const Matrix<float>& a, const Matrix<float>& b, float beta, float* c, int64_t ldc,
                  const float* bias) {
  own_gemm_on_target(m, n, k, a, b, beta, c, ldc, bias);
}
void own_gemm_f64(int64_t m, int64_t n, int64_t k, const Matrix<double>& a, const Matrix<double>& b, double beta, double* c, int64_t ldc,
                  const double* bias) {
  own_gemm_on_target(m, n, k, a, b, beta, c, ldc, bias);
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(own_gemm_f32);
HWY_EXPORT(own_gemm_f64);

namespace cpu {

template <class T>
void scale_and_bias(int64_t m, int64_t n, T beta, T* c, int64_t ldc, const T* bias) {
  for (int64_t i = 0; i < m; ++i) {
    T* row = c + i * ldc;
    for (int64_t j = 0; j < n; ++j) row[j] = (beta == T(0) ? T(0) : beta * row[j]) + (bias ? bias[j] : T(0));
  }
}
template void scale_and_bias(int64_t, int64_t, float, float*, int64_t, const float*);
template void scale_and_bias(int64_t, int64_t, double, double*, int64_t, const double*);

template <>
void own_gemm(int64_t m, int64_t n, int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c, int64_t ldc, const float* bias) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_and_bias(m, n, beta, c, ldc, bias);
  HWY_DYNAMIC_DISPATCH(own_gemm_f32)(m, n, k, a, b, beta, c, ldc, bias);
}
template <>
void own_gemm(int64_t m, int64_t n, int64_t k, Matrix<double> a, Matrix<double> b, double beta, double* c, int64_t ldc, const double* bias) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_and_bias(m, n, beta, c, ldc, bias);
  HWY_DYNAMIC_DISPATCH(own_gemm_f64)(m, n, k, a, b, beta, c, ldc, bias);
}

}  // namespace cpu
}  // namespace lamina::kernels
#endif
