// Included once per SIMD target (see simd.h): what the forward and backward walk of a recurrent layer share.

#if defined(LAMINA_KERNELS_CPU_RECURRENT_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_RECURRENT_SIMD_H
#undef LAMINA_KERNELS_CPU_RECURRENT_SIMD_H
#else
#define LAMINA_KERNELS_CPU_RECURRENT_SIMD_H
#endif

#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/gemm_split.h"
#include "kernels/cpu/measure.h"
#include "kernels/cpu/recurrent_parts.h"
#include "kernels/cpu/simd_math.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

/// x-hat of a row: (x - mean) rstd + rest, where rest is what the mean's rounding lost.
template <class T>
struct Normaliser {
  Normaliser() = default;
  explicit Normaliser(const T* statistics) : mean(set(statistics[0])), rstd(set(statistics[1])), rest(set(statistics[2])) {}
  HWY_INLINE Vec<T> operator()(Vec<T> x) const { return hn::MulAdd(hn::Sub(x, mean), rstd, rest); }
  Vec<T> mean, rstd, rest;
};

/// Sequences that a thread takes through a cell together: what belongs to the columns is loaded once for all of them, and sums over a row hide each
/// other's latency.
constexpr int kGroup = 4;

/// Statistics of kRows rows into arrays of three numbers. Rows may be given twice.
template <int kRows, class T>
void measure_into(const RecurrentSpec& spec, int64_t n, const T* const (&x)[kRows], T* const (&statistics)[kRows]) {
  const auto measured = measure_rows<kRows, T>(spec.centre, spec.eps, n, x);
  for (int r = 0; r < kRows; ++r) {
    const Statistics<T>& s = measured[static_cast<size_t>(r)];
    statistics[r][0] = s.mean, statistics[r][1] = s.rstd, statistics[r][2] = -s.shift * s.rstd;
  }
}

/// How many runs of a row have statistics of their own, how many gates are in each, and in which one a gate is.
template <Cell cell, TermNorm norm>
struct Segments {
  static constexpr int gates = cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1;
  static constexpr int count = norm == TermNorm::gates ? gates : cell == Cell::gru ? 2 : 1;
  static constexpr int of(int gate) { return norm == TermNorm::gates ? gate : cell == Cell::gru && gate == 2 ? 1 : 0; }
  static constexpr int first(int segment) { return norm == TermNorm::gates ? segment : 2 * segment; }  // its first gate
  static constexpr int size(int segment) { return norm == TermNorm::gates ? 1 : cell == Cell::lstm ? 4 : segment == 1 ? 1 : gates == 3 ? 2 : 1; }
};

/// Rows of a, lda apart, and what they are multiplied with.
template <class T>
struct Factors {
  const T* a;
  int64_t lda;
  const Packed<T>* w;

  const T* panel(int64_t index) const { return w->data.get() + index * kPanel<T> * w->k; }
};

/// Whether a step with so many sequences alive is multiplied on the processor's matrix unit, if the weight is there for it. It is the step's, not a
/// thread's share, that counts: bits must not depend on how the rows were shared out.
inline bool on_matrix_unit(int64_t alive) { return alive >= cpu::kUnitRows; }

/// rows x panels of out = beta out + bias + a W.
template <class T, class Fetch = NoAhead>
HWY_INLINE void share_of_product(Range rows, Range panels, const Factors<T>& f, const Output<T>& out, bool unit, const Fetch& ahead = {}) {
  if (rows.begin >= rows.end) return;
  const T* const a = f.a + rows.begin * f.lda;
  const Output<T> to = out.from(rows.begin, 0);
  if constexpr (std::is_same_v<T, float>) {
    const cpu::SplitFactors factors[] = {{a, f.lda, f.w}};
    if (unit && f.w->split) return cpu::split_product(rows.end - rows.begin, panels.begin, panels.end, factors, to.beta, to.c, to.ldc, to.bias);
  }
  for (int64_t panel = panels.begin; panel < panels.end; ++panel)
    times_panel<T>(rows.end - rows.begin, f.w->k, {a, f.lda, false}, 0, f.panel(panel), panel * kPanel<T>, f.w->n, to, ahead);
}

/// The same for the sum of two products.
template <class T, class Fetch>
HWY_INLINE void share_of_products(Range rows, Range panels, const Factors<T>& f, const Factors<T>& g, const Output<T>& out, bool unit,
                                  const Fetch& ahead) {
  if (rows.begin >= rows.end) return;
  const T *const a = f.a + rows.begin * f.lda, *const b = g.a + rows.begin * g.lda;
  const Output<T> to = out.from(rows.begin, 0);
  if constexpr (std::is_same_v<T, float>) {
    const cpu::SplitFactors factors[] = {{a, f.lda, f.w}, {b, g.lda, g.w}};
    if (unit && f.w->split && g.w->split)
      return cpu::split_product(rows.end - rows.begin, panels.begin, panels.end, factors, to.beta, to.c, to.ldc, to.bias);
  }
  if (unit && (f.w->split || g.w->split)) {
    share_of_product<T>(rows, panels, f, out, unit, ahead);
    return share_of_product<T>(rows, panels, g, out.going_on(), unit);
  }
  for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
    const Source<T> sources[] = {{a, f.lda, 1, f.w->k, f.panel(panel)}, {b, g.lda, 1, g.w->k, g.panel(panel)}};
    times_panels<false, T>(rows.end - rows.begin, sources, panel * kPanel<T>, f.w->n, to, ahead);
  }
}

template <class T>
int64_t panel_count(const Packed<T>& w) {
  return (w.n + kPanel<T> - 1) / kPanel<T>;
}

/// Rows with which a thread multiplies alone as fast as with more.
template <class T>
int64_t least_rows(const Packed<T>& w) {
  return w.split ? 32 : kTileRows;
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_RECURRENT_SIMD_H
