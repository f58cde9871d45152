// Products of middling size (a batch of 128 with a layer's weight), where general BLAS shares out the work in its own way: the weight moves from core
// to core, and panels are packed for all. Here only the small operand is packed, once for all threads. The weight is the left operand, read where it
// stands, a tile's rows at a time, while the lines of the next rows are on their way; where it stands on the right, C is computed transposed:
// C^T = B^T A^T. A weight's rows belong to the same thread in the forward product, in both gradients and in the update.

#include <algorithm>

#include <lamina/core/parallel.h>
#include "kernels/cpu/gemm_own.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_blocked.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

// Rows of the right operand that are packed at a time: a panel of them is 128 KiB, and kGroup bytes of panels stay in a core's second cache.
// A strip of the left one stays in the first, unless the result is transposed: doing that for every stretch of depth would cost more.
constexpr int64_t kDepth = 1024, kStripDepth = 256, kGroup = 512 << 10;
// Multiplications below which a range is not worth a thread.
constexpr int64_t kGrain = 1 << 18;

int64_t grain(int64_t work_of_one) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work_of_one)); }

template <class T>
int64_t panels_of(int64_t columns) {
  return (columns + kPanel<T> - 1) / kPanel<T>;
}

template <class T>
Matrix<T> transposed(const Matrix<T>& a) {
  return {a.data, a.ld, !a.transposed};
}

/// B [k,n] is a weight that stands as it is (the gradient for the input): chunks of its rows are shared out, each giving a part of every sum. 1 where
/// the parts would cost more than they save.
template <class T>
int64_t depth_chunks(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kLeastRows = 256;
  return chunks_of<T>(m, n, [&](int64_t chunks) { return k >= chunks * kLeastRows && k >= chunks * m; });
}

/// A stretch of the sums, and a right operand that is packed there: panel after panel, each [depth, kPanel].
template <class T>
struct Part {
  int64_t top, depth;
  const T* panels;
  int64_t columns;
};

/// Packs the columns of R from j on, of the rows [top, top + depth).
template <class T>
void pack_part(const Matrix<T>& r, int64_t j, int64_t n, int64_t top, int64_t depth, T* panels) {
  constexpr int64_t kSlice = 64;  // so that a batch of few columns is work for all threads
  const int64_t slices = (depth + kSlice - 1) / kSlice;
  parallel_for(panels_of<T>(n - j) * slices, grain(8 * kPanel<T> * kSlice), [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t panel = unit / slices, p = unit % slices * kSlice;
      pack_panel(r, top + p, std::min(kSlice, depth - p), j + panel * kPanel<T>, n, panels + (panel * depth + p) * kPanel<T>);
    }
  });
}

/// What the tiles of one block of rows ask for on behalf of the next one, which begins at row i: the lines of its rows, or the line with the last of
/// its columns where L stands transposed; the tiles of the first four panels (or of as many as there are) share them.
template <class T>
Ahead<T> ahead_of(const Matrix<T>& l, int64_t i, int64_t rows, const Part<T>& part, int64_t panel) {
  const int64_t count = std::max<int64_t>(1, 4 / panels_of<T>(part.columns)), lines = 4 * count;
  if (l.transposed) {
    const int64_t p = panel * lines * (part.depth / Ahead<T>::kLine);
    if (p >= part.depth) return {};
    return {l.data + (part.top + p) * l.ld + i + rows - 1, count, l.ld, lines * l.ld};
  }
  if (panel * lines >= rows) return {};
  return {l.data + (i + panel * lines) * l.ld + part.top, count, l.ld, Ahead<T>::kLine};
}

/// C(c, r) of `out` = beta C + bias + the sum over chunks of sums[chunk][r][c], in the order of chunks, for [rows, columns] sums.
template <class T>
void put_transposed(int64_t chunks, int64_t chunk_size, const T* sums, int64_t ld, int64_t rows, int64_t columns, const Output<T>& out) {
  constexpr int64_t kBlock = kSquare / static_cast<int64_t>(sizeof(T));
  const auto one = [&](int64_t r, int64_t c) {
    T total = sums[r * ld + c];
    for (int64_t chunk = 1; chunk < chunks; ++chunk) total += sums[chunk * chunk_size + r * ld + c];
    out.c[c * out.ldc + r] = out.start(c, r) + total;
  };
  int64_t r = 0;
  for (; r + kBlock <= rows; r += kBlock) {
    int64_t c = 0;
    for (; c + kBlock <= columns; c += kBlock) put_square(chunks, chunk_size, sums + r * ld + c, ld, out.from(c, r));
    for (; c < columns; ++c)
      for (int64_t q = r; q < r + kBlock; ++q) one(q, c);
  }
  for (; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) one(r, c);
}

/// Room for a strip: a tile's rows of a transposed L. Where these stand each number of the sums' depth is in another line, often in the same set of
/// the first cache as the others, and every panel would fetch them again.
template <class T>
int64_t strip_size(int64_t depth) {
  return kTileRows * depth + lanes<T>();
}

/// The first `rows` numbers of each of `depth` rows, ld apart, side by side. Writes up to a vector too much.
template <class T>
void pack_strip(const T* from, int64_t ld, int64_t depth, int64_t rows, T* strip) {
  for (int64_t p = 0; p < depth; ++p, from += ld, strip += rows)
    for_each_vector<T>(rows, [&](auto at) HWY_ATTR { store(at.load(from), strip + at.index); });
}

/// The rows [begin, end) of L R, of one part of the sums, go to `out`, or transposed to the columns of `out`.
template <class T>
void some_rows(int64_t begin, int64_t end, const Matrix<T>& l, const Part<T>& part, bool to_columns, const Output<T>& out) {
  constexpr int64_t kLeastPanels = 3;  // for which a strip pays
  HWY_ALIGN T sums[kTileRows * kPanel<T>];
  const bool in_strips = l.transposed && panels_of<T>(part.columns) >= kLeastPanels;
  const Scratch<T> strip(in_strips ? strip_size<T>(part.depth) : 0);
  const int64_t blocks = (end - begin + kTileRows - 1) / kTileRows;
  for (int64_t block = 0; block < blocks; ++block) {
    const auto start = [&](int64_t index) { return begin + (end - begin) * index / blocks; };
    const int64_t i = start(block), rows = start(block + 1) - i, after = block + 1 < blocks ? start(block + 2) - i - rows : 0;
    if (in_strips) pack_strip(l.data + part.top * l.ld + i, l.ld, part.depth, rows, strip.data());
    const Matrix<T> left = in_strips ? Matrix<T>{strip.data(), rows, true} : Matrix<T>{l.data + i * (l.transposed ? 1 : l.ld), l.ld, l.transposed};
    const int64_t top = in_strips ? 0 : part.top;
    for (int64_t panel = 0; panel * kPanel<T> < part.columns; ++panel) {
      const int64_t j = panel * kPanel<T>, width = std::min(kPanel<T>, part.columns - j);
      const Ahead<T> ahead = after > 0 ? ahead_of(l, i + rows, after, part, panel) : Ahead<T>{};
      const T* panel_data = part.panels + j * part.depth;
      if (!to_columns) {
        times_panel(rows, part.depth, left, top, panel_data, j, part.columns, out.from(i, 0), ahead);
        continue;
      }
      times_panel(rows, part.depth, left, top, panel_data, 0, width, Output<T>{T(0), sums, kPanel<T>, nullptr}, ahead);
      put_transposed(1, 0, sums, kPanel<T>, rows, width, out.from(j, i));
    }
  }
}

/// L [m,k] R [k,n] goes to `out`, or its transpose does. L's rows are shared out, and everybody reads the packed R.
template <class T>
void by_rows(int64_t m, int64_t n, int64_t k, const Matrix<T>& l, const Matrix<T>& r, bool to_columns, const Output<T>& out) {
  const int64_t deepest = l.transposed && !to_columns ? kStripDepth : kDepth, most = std::min(k, deepest), panel = kPanel<T> * most;
  const int64_t group = std::max<int64_t>(1, kGroup / (panel * static_cast<int64_t>(sizeof(T)))) * kPanel<T>;
  const Scratch<T> packed(panels_of<T>(std::min(n, group)) * panel);
  for (int64_t j = 0; j < n; j += group) {
    const Output<T> there = to_columns ? out.from(j, 0) : out.from(0, j);
    for (int64_t top = 0; top < k; top += deepest) {
      const Part<T> part{top, std::min(deepest, k - top), packed.data(), std::min(group, n - j)};
      pack_part(r, j, j + part.columns, top, part.depth, packed.data());
      parallel_for(m, grain(part.columns * part.depth),
                   [&](int64_t begin, int64_t end) HWY_ATTR { some_rows(begin, end, l, part, to_columns, top == 0 ? there : there.going_on()); });
    }
  }
}

/// The same for the columns of `out`, with chunks of the sums shared out.
template <class T>
void by_chunks(int64_t chunks, int64_t m, int64_t n, int64_t k, const Matrix<T>& l, const Matrix<T>& r, const Output<T>& out) {
  const int64_t width = panels_of<T>(n) * kPanel<T>;
  const Scratch<T> packed(width * k), sums(chunks * m * n);
  const auto part = [&](int64_t chunk) {
    const int64_t top = k * chunk / chunks;
    return Part<T>{top, k * (chunk + 1) / chunks - top, packed.data() + width * top, n};
  };
  for (int64_t chunk = 0; chunk < chunks; ++chunk) pack_part(r, 0, n, part(chunk).top, part(chunk).depth, packed.data() + width * part(chunk).top);
  parallel_for(chunks * m, grain(n * k / chunks), [&](int64_t begin, int64_t end) HWY_ATTR {
    while (begin < end) {
      const int64_t chunk = begin / m, stop = std::min(end, (chunk + 1) * m);
      some_rows(begin - chunk * m, stop - chunk * m, l, part(chunk), false, Output<T>{T(0), sums.data() + chunk * m * n, n, nullptr});
      begin = stop;
    }
  });
  parallel_for(m, std::max<int64_t>(1, 65536 / (n * chunks)), [&](int64_t begin, int64_t end) HWY_ATTR {
    put_transposed(chunks, m * n, sums.data() + begin * n, n, end - begin, n, out.from(0, begin));
  });
}

template <class T>
void blocked_gemm_on_target(int64_t m, int64_t n, int64_t k, const Matrix<T>& a, const Matrix<T>& b, T beta, T* c, int64_t ldc, const T* bias) {
  const Output<T> out{beta, c, ldc, bias};
  if (a.transposed && !b.transposed) return by_rows(m, n, k, a, b, false, out);
  const int64_t chunks = b.transposed ? 1 : depth_chunks<T>(m, n, k);
  if (chunks > 1) return by_chunks(chunks, n, m, k, transposed(b), transposed(a), out);
  by_rows(n, m, k, transposed(b), transposed(a), true, out);
}

void blocked_gemm_f32(int64_t m, int64_t n, int64_t k, const Matrix<float>& a, const Matrix<float>& b, float beta, float* c, int64_t ldc,
                      const float* bias) {
  blocked_gemm_on_target(m, n, k, a, b, beta, c, ldc, bias);
}
void blocked_gemm_f64(int64_t m, int64_t n, int64_t k, const Matrix<double>& a, const Matrix<double>& b, double beta, double* c, int64_t ldc,
                      const double* bias) {
  blocked_gemm_on_target(m, n, k, a, b, beta, c, ldc, bias);
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(blocked_gemm_f32);
HWY_EXPORT(blocked_gemm_f64);

namespace cpu {

template <>
void blocked_gemm(int64_t m, int64_t n, int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c, int64_t ldc, const float* bias) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_and_bias(m, n, beta, c, ldc, bias);
  HWY_DYNAMIC_DISPATCH(blocked_gemm_f32)(m, n, k, a, b, beta, c, ldc, bias);
}
template <>
void blocked_gemm(int64_t m, int64_t n, int64_t k, Matrix<double> a, Matrix<double> b, double beta, double* c, int64_t ldc, const double* bias) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_and_bias(m, n, beta, c, ldc, bias);
  HWY_DYNAMIC_DISPATCH(blocked_gemm_f64)(m, n, k, a, b, beta, c, ldc, bias);
}

}  // namespace cpu
}  // namespace lamina::kernels
#endif
