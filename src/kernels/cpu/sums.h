// Several sums in one pass, accurate for any length: vector accumulators over a chunk, chunks added in double, in order.
// Re-included once per instruction set, see simd.h.

#if defined(LAMINA_KERNELS_CPU_SUMS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_SUMS_H
#undef LAMINA_KERNELS_CPU_SUMS_H
#else
#define LAMINA_KERNELS_CPU_SUMS_H
#endif

#include <algorithm>
#include <array>

#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

/// One vector of terms for each of K sums.
template <class T, int K>
struct Terms {
  Vec<T> term[K];
};

/// Longest run that is added up in T itself.
inline constexpr int64_t sum_chunk = 2048;

template <class T, int K, class F>
HWY_INLINE void add_chunk(int64_t begin, int64_t end, F&& f, std::array<double, K>& totals) {
  constexpr int unroll = K == 1 ? 4 : 2;  // independent chains of additions
  const int64_t step = lanes<T>();
  Vec<T> acc[unroll][K];
  for (auto& chain : acc)
    for (auto& v : chain) v = zero<T>();
  int64_t i = begin;
  for (; i + unroll * step <= end; i += unroll * step) {
    for (int u = 0; u < unroll; ++u) {
      const Terms<T, K> terms = f(WholeVector<T>{i + u * step});
      for (int k = 0; k < K; ++k) acc[u][k] = hn::Add(acc[u][k], terms.term[k]);
    }
  }
  for (; i + step <= end; i += step) {
    const Terms<T, K> terms = f(WholeVector<T>{i});
    for (int k = 0; k < K; ++k) acc[0][k] = hn::Add(acc[0][k], terms.term[k]);
  }
  if (i < end) {
    const PartialVector<T> at{i, end - i};
    const Terms<T, K> terms = f(at);
    for (int k = 0; k < K; ++k) acc[1][k] = hn::Add(acc[1][k], at.keep(terms.term[k]));
  }
  for (int k = 0; k < K; ++k) {
    for (int u = 1; u < unroll; ++u) acc[0][k] = hn::Add(acc[0][k], acc[u][k]);
    totals[static_cast<size_t>(k)] += static_cast<double>(sum_lanes<T>(acc[0][k]));
  }
}

/// The K sums of f(at).term[k] over [0, n); f's partial vectors may hold anything beyond the real lanes. f may store as it goes.
template <class T, int K, class F>
HWY_INLINE std::array<double, K> sums(int64_t n, F&& f) {
  std::array<double, K> totals{};
  for (int64_t begin = 0; begin < n; begin += sum_chunk) add_chunk<T, K>(begin, std::min(n, begin + sum_chunk), f, totals);
  return totals;
}

/// K sums over [0, n), each in kChains chains of additions: f(at, sums) adds its terms to them, none from beyond a partial vector. totals grow.
template <int K, class T, int kChains = 1, class F>
HWY_INLINE void grown_sums(int64_t n, double* totals, F&& f) {
  for (int64_t begin = 0; begin < n; begin += sum_chunk) {
    const int64_t end = std::min(n, begin + sum_chunk), step = lanes<T>();
    Vec<T> sums[kChains][K];
    for (auto& chain : sums)
      for (Vec<T>& sum : chain) sum = zero<T>();
    int64_t i = begin;
    for (; i + kChains * step <= end; i += kChains * step)
      for (int c = 0; c < kChains; ++c) f(WholeVector<T>{i + c * step}, sums[c]);
    for (; i + step <= end; i += step) f(WholeVector<T>{i}, sums[0]);
    if (i < end) f(PartialVector<T>{i, end - i}, sums[kChains - 1]);
    for (int k = 0; k < K; ++k) {
      for (int c = 1; c < kChains; ++c) sums[0][k] = hn::Add(sums[0][k], sums[c][k]);
      totals[k] += static_cast<double>(sum_lanes<T>(sums[0][k]));
    }
  }
}

/// K sums for each of kRows rows: of f(at, row).term[k]. Each sum is one chain of additions, whatever kRows is; the rows hide its latency.
template <int kRows, int K, class T, class F>
HWY_INLINE std::array<std::array<double, K>, kRows> row_sums(int64_t n, F&& f) {
  std::array<std::array<double, K>, kRows> totals{};
  grown_sums<kRows * K, T>(n, totals[0].data(), [&](auto at, Vec<T>* sums) HWY_ATTR {
    for (int r = 0; r < kRows; ++r) {
      const Terms<T, K> terms = f(at, r);
      for (int k = 0; k < K; ++k) sums[r * K + k] = hn::Add(sums[r * K + k], at.keep(terms.term[k]));
    }
  });
  return totals;
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_SUMS_H
