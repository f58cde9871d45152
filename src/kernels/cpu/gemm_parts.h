// Included once per SIMD target (see simd.h): what the own product kernels share.

#if defined(LAMINA_KERNELS_CPU_GEMM_PARTS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_GEMM_PARTS_H
#undef LAMINA_KERNELS_CPU_GEMM_PARTS_H
#else
#define LAMINA_KERNELS_CPU_GEMM_PARTS_H
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include <lamina/core/parallel.h>
#include "kernels/cpu/gemm_own.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

using cpu::kPanel;

// ---- where a product goes ----

template <class T>
struct Output {
  T beta;
  T* c;
  int64_t ldc;
  const T* bias;

  /// What of it begins at row i and column j.
  HWY_INLINE Output from(int64_t i, int64_t j) const { return {beta, c + i * ldc + j, ldc, bias ? bias + j : nullptr}; }
  /// The same once a first part of every sum is in C.
  HWY_INLINE Output going_on() const { return {T(1), c, ldc, nullptr}; }

  /// beta C + bias at one element, C not read when beta = 0.
  HWY_INLINE T start(int64_t i, int64_t j) const { return (beta == T(0) ? T(0) : beta * c[i * ldc + j]) + (bias ? bias[j] : T(0)); }
  template <class At>
  HWY_INLINE Vec<T> start(At at, int64_t i) const {
    Vec<T> v = beta == T(0) ? zero<T>() : hn::Mul(set(beta), at.load(c + i * ldc));
    return bias ? hn::Add(v, at.load(bias)) : v;
  }
};

template <class T, class At>
HWY_INLINE void finish(const Output<T>& out, At at, int64_t i, Vec<T> sums) {
  at.store(out.c + i * out.ldc, hn::Add(out.start(at, i), sums));
}

/// Into how many chunks a sum is cut, each giving an [m,n] of its own: a power of two that depends on the shape alone, so that bits do not depend on
/// the thread count; as many as pay, up to 64 and to 4 MiB of sums.
template <class T, class Pays>
int64_t chunks_of(int64_t m, int64_t n, Pays&& pays) {
  constexpr int64_t kMost = 64, kMostBytes = int64_t{4} << 20;
  int64_t chunks = 1;
  while (2 * chunks <= kMost && 2 * chunks * m * n * static_cast<int64_t>(sizeof(T)) <= kMostBytes && pays(2 * chunks)) chunks *= 2;
  return chunks;
}

/// C = beta C + bias + the sum over chunks of sums[chunk][m][n], in the order of chunks.
template <class T>
void add_chunks(int64_t chunks, int64_t m, int64_t n, const T* sums, const Output<T>& out) {
  parallel_for(m, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, n * chunks)), [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      for_each_vector<T>(n, [&](auto at) HWY_ATTR {
        Vec<T> total = at.load(sums + i * n);
        for (int64_t chunk = 1; chunk < chunks; ++chunk) total = hn::Add(total, at.load(sums + (chunk * m + i) * n));
        finish(out, at, i, total);
      });
    }
  });
}

// ---- panels of B: [k, kPanel], contiguous, zeros beyond column n ----

constexpr int64_t kSquare = 16;  // bytes: a block of 4x4 floats or 2x2 doubles

/// to[q][s] = from[s][q] for a block of 16 bytes by as many rows.
#if HWY_TARGET == HWY_SCALAR
template <class T>
HWY_INLINE void transpose_block(const T* from, int64_t ld, T* to, int64_t to_ld) {
  for (int64_t s = 0; s < kSquare / static_cast<int64_t>(sizeof(T)); ++s)
    for (int64_t q = 0; q < kSquare / static_cast<int64_t>(sizeof(T)); ++q) to[q * to_ld + s] = from[s * ld + q];
}
#else
HWY_INLINE void transpose_block(const float* from, int64_t ld, float* to, int64_t to_ld) {
  const hn::Full128<float> d;
  const hn::Full128<double> pairs;
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + ld), c = hn::LoadU(d, from + 2 * ld), e = hn::LoadU(d, from + 3 * ld);
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, a, b)), ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
  const auto ce_low = hn::BitCast(pairs, hn::InterleaveLower(d, c, e)), ce_high = hn::BitCast(pairs, hn::InterleaveUpper(d, c, e));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, ce_low)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, ce_low)), d, to + to_ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, ce_high)), d, to + 2 * to_ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, ce_high)), d, to + 3 * to_ld);
}
HWY_INLINE void transpose_block(const double* from, int64_t ld, double* to, int64_t to_ld) {
  const hn::Full128<double> d;
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + ld);
  hn::StoreU(hn::InterleaveLower(d, a, b), d, to);
  hn::StoreU(hn::InterleaveUpper(d, a, b), d, to + to_ld);
}
#endif

/// Such a block of `out`, from its first element on: beta C + bias + the transpose of the sum over chunks of sums[chunk], in the order of chunks.
template <class T>
HWY_INLINE void put_square(int64_t chunks, int64_t chunk_size, const T* sums, int64_t ld, const Output<T>& out) {
  constexpr int64_t kBlock = kSquare / static_cast<int64_t>(sizeof(T));
  const hn::CappedTag<T, static_cast<size_t>(kBlock)> d;
  HWY_ALIGN T square[kBlock * kBlock], turned[kBlock * kBlock];
  const auto for_each_part = [&](auto&& f) HWY_ATTR {
    for (int64_t q = 0; q < kBlock; ++q)
      for (int64_t s = 0; s < kBlock; s += static_cast<int64_t>(hn::Lanes(d))) f(q, s);
  };
  for_each_part([&](int64_t q, int64_t s) HWY_ATTR {
    auto total = hn::LoadU(d, sums + q * ld + s);
    for (int64_t chunk = 1; chunk < chunks; ++chunk) total = hn::Add(total, hn::LoadU(d, sums + chunk * chunk_size + q * ld + s));
    hn::StoreU(total, d, square + q * kBlock + s);
  });
  transpose_block(square, kBlock, turned, kBlock);
  for_each_part([&](int64_t q, int64_t s) HWY_ATTR {
    T* c = out.c + q * out.ldc + s;
    auto start = out.beta == T(0) ? hn::Zero(d) : hn::Mul(hn::Set(d, out.beta), hn::LoadU(d, c));
    if (out.bias) start = hn::Add(start, hn::LoadU(d, out.bias + s));
    hn::StoreU(hn::Add(start, hn::LoadU(d, turned + q * kBlock + s)), d, c);
  });
}

/// Rows [top, top + k) of B [., n], its columns from j on.
template <class T>
void pack_panel(const Matrix<T>& b, int64_t top, int64_t k, int64_t j, int64_t n, T* panel) {
  constexpr int64_t kBlock = kSquare / static_cast<int64_t>(sizeof(T));
  const int64_t width = std::min(kPanel<T>, n - j);
  if (!b.transposed) {
    if (width == kPanel<T>) {
      for (int64_t p = 0; p < k; ++p)
        for (int64_t v = 0; v < kPanel<T>; v += lanes<T>()) store(load(b.data + (top + p) * b.ld + j + v), panel + p * kPanel<T> + v);
      return;
    }
    for (int64_t p = 0; p < k; ++p) {
      T* target = panel + p * kPanel<T>;
      std::copy_n(b.data + (top + p) * b.ld + j, width, target);
      std::fill(target + width, target + kPanel<T>, T(0));
    }
    return;
  }
  const T* rows = b.data + j * b.ld + top;
  int64_t s = 0;
  for (; s + kBlock <= width; s += kBlock) {
    int64_t p = 0;
    for (; p + kBlock <= k; p += kBlock) transpose_block(rows + s * b.ld + p, b.ld, panel + p * kPanel<T> + s, kPanel<T>);
    for (; p < k; ++p)
      for (int64_t r = s; r < s + kBlock; ++r) panel[p * kPanel<T> + r] = rows[r * b.ld + p];
  }
  for (; s < kPanel<T>; ++s)
    for (int64_t p = 0; p < k; ++p) panel[p * kPanel<T> + s] = s < width ? rows[s * b.ld + p] : T(0);
}

// ---- tiles of C, kept in registers over all of k, from a panel of B ----

/// Lines of memory that a tile asks for while it multiplies, since a later one needs them: every kEvery steps, `count` that are `next` elements
/// apart; every line's worth of steps the first one moves on by `further`.
template <class T>
struct Ahead {
  static constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T)), kEvery = kLine / 4;

  const T* first = nullptr;
  int64_t count = 0, next = 0, further = 0;

  HWY_INLINE void fetch(int64_t p) const {
    if (p % kEvery != 0) return;
    const T* from = first + p / kLine * further + p % kLine / kEvery * count * next;
    for (int64_t line = 0; line < count; ++line) hwy::Prefetch(from + line * next);
  }
};

struct NoAhead {
  HWY_INLINE void fetch(int64_t) const {}
};

/// Of a sum of products: rows of A, a[r * row + p * depth] for p < k, and a panel of B.
template <class T>
struct Source {
  const T* a;
  int64_t row, depth, k;
  const T* panel;
};

/// kRows x kVectors vectors of C: rows of the sources times their panels, from row i and the panels' column `offset` on.
template <class T, bool kTransposed, int kRows, int kVectors, class Fetch>
HWY_INLINE void tile(std::span<const Source<T>> sources, int64_t i, int64_t offset, int64_t columns, const Output<T>& out, const Fetch& ahead) {
  const int64_t step = lanes<T>();
  Vec<T> sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = zero<T>();
      hwy::Prefetch(out.c + r * out.ldc + v * step);  // C is often in no cache: without this the stores below wait for it
    }
  }
  for (const Source<T>& source : sources) {
    // A pointer for every three rows, which an address reaches from it: with one for each, compilers run out of registers.
    constexpr int kPointers = (kRows + 2) / 3;
    const int64_t row = kTransposed ? 1 : source.row;
    const T* rows[kPointers];
    for (int q = 0; q < kPointers; ++q) rows[q] = source.a + (i + 3 * q) * row;
    const T* panel = source.panel + offset;
    for (int64_t p = 0; p < source.k; ++p, panel += kPanel<T>) {
      ahead.fetch(p);
      Vec<T> b[kVectors];
      for (int v = 0; v < kVectors; ++v) b[v] = load(panel + v * step);
      for (int r = 0; r < kRows; ++r) {
        const Vec<T> factor = set(rows[r / 3][r % 3 * row]);
        for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(factor, b[v], sums[r][v]);
      }
      for (const T*& pointer : rows) pointer += source.depth;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t rest = columns - v * step;
      if (rest >= step)
        finish(out, WholeVector<T>{v * step}, r, sums[r][v]);
      else if (rest > 0)
        finish(out, PartialVector<T>{v * step, rest}, r, sums[r][v]);
    }
  }
}

/// The same for any number of rows up to kRows, and one vector where that is enough.
template <class T, bool kTransposed, int kRows, class Fetch>
HWY_INLINE void tile_of(int64_t rows, std::span<const Source<T>> sources, int64_t i, int64_t offset, int64_t columns, const Output<T>& out,
                        const Fetch& ahead) {
  if constexpr (kRows > 0) {
    if (rows != kRows) return tile_of<T, kTransposed, kRows - 1>(rows, sources, i, offset, columns, out, ahead);
    if (columns <= lanes<T>()) return tile<T, kTransposed, kRows, 1>(sources, i, offset, columns, out, ahead);
    tile<T, kTransposed, kRows, 2>(sources, i, offset, columns, out, ahead);
  }
}

/// Rows of a full tile: of 32 or 16 registers, two accumulators a row, two for B, one for the factor.
constexpr int kTileRows = HWY_TARGET <= HWY_AVX3 ? 14 : 6;

/// Rows [0, m) of the columns from j on (as many as a panel has) of C [., n]: the sum of the sources' products.
template <bool kTransposed, class T, class Fetch = NoAhead>
void times_panels(int64_t m, std::span<const Source<T>> sources, int64_t j, int64_t n, const Output<T>& out, const Fetch& ahead = {}) {
  const int64_t step = 2 * lanes<T>();
  for (int64_t offset = 0; offset < kPanel<T> && j + offset < n; offset += step) {
    // Tiles of about the same height: a last one of few rows would wait for its own sums.
    const int64_t tiles = (m + kTileRows - 1) / kTileRows;
    for (int64_t t = 0, i = 0; t < tiles; ++t) {
      const int64_t rows = m / tiles + (t < m % tiles ? 1 : 0);
      tile_of<T, kTransposed, kTileRows>(rows, sources, i, offset, n - j - offset, out.from(i, j + offset), ahead);
      i += rows;
    }
  }
}

/// The same of one product, with the rows [top, top + k) of A's depth.
template <class T, class Fetch = NoAhead>
void times_panel(int64_t m, int64_t k, const Matrix<T>& a, int64_t top, const T* panel, int64_t j, int64_t n, const Output<T>& out,
                 const Fetch& ahead = {}) {
  const int64_t row = a.transposed ? 1 : a.ld, depth = a.transposed ? a.ld : 1;
  const Source<T> source{a.data + top * depth, row, depth, k, panel};
  if (a.transposed)
    times_panels<true, T>(m, {&source, 1}, j, n, out, ahead);
  else
    times_panels<false, T>(m, {&source, 1}, j, n, out, ahead);
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
