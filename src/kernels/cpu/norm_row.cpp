// Row normaliser: statistics over runs of a row, and its backward.

#include <lamina/core/parallel.h>

#include <algorithm>

#include "kernels/cpu/norm_parts.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_row.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/norm_row_forward.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

// How a row was normalised, as forward did it: x-hat = (x - mean) rstd + offset.
template <class T>
struct RowScale {
  T mean, rstd, offset;
};

// A row's sums in the first sweep: of a = gain dy, and of a x-hat.
struct RowSums {
  double a = 0, ax = 0;
};

// What the second sweep needs to know of a row: dx = rstd (gain dy - (x - mean) slope - level), which is rstd (a - mean(a) - x-hat mean(a x-hat)).
template <class T>
struct RowTerms {
  T mean, rstd, slope, level;
};

template <class T>
RowTerms<T> row_terms(const RowNorm& spec, const RowScale<T>& row, const RowSums& sum) {
  const double measured = static_cast<double>(std::max<int64_t>(measured_width(spec), 1));
  const double mean_a = spec.centre ? sum.a / measured : 0, mean_ax = sum.ax / measured;
  return {row.mean, row.rstd, static_cast<T>(mean_ax * static_cast<double>(row.rstd)),
          static_cast<T>(mean_a + mean_ax * static_cast<double>(row.offset))};
}

// The arrays of one row_backward call.
template <class T>
struct RowBackward {
  const RowNorm& spec;
  const T *x, *gain, *mean, *rstd, *dy;
  T *dx, *dgain, *dbias;
  const bool streamed = dx && streams(dx, (spec.rows * spec.width), run_length(spec));

  RowScale<T> scale(int64_t row) const {
    return spec.centre ? RowScale<T>{mean[row], rstd[row], -mean[spec.rows + row] * rstd[row]} : RowScale<T>{0, rstd[row], 0};
  }

  // Second sweep over n columns from element `start` on, `head` of them before the first aligned vector.
  template <template <class> class Whole, class Gain>
  HWY_INLINE void columns(int64_t start, int64_t head, int64_t n, const RowTerms<T>& row, bool measured, Gain gain_at) const {
    const T *const xs = x + start, *const dys = dy + start;
    T* const result = dx + start;
    const Vec<T> mean_v = set(row.mean), rstd_v = set(row.rstd), slope = set(measured ? row.slope : T{0}), level = set(measured ? row.level : T{0});
    for_each_vector_after<T, Whole>(head, n, [&](auto at) HWY_ATTR {
      const Vec<T> shared = hn::MulAdd(hn::Sub(at.load(xs), mean_v), slope, level);
      at.store_result(result, hn::Mul(rstd_v, hn::MulSub(at.load(dys), gain_at(at), shared)));
    });
  }

  // Second sweep over the columns [begin, begin + length) of a row, cut where the measured entries end, and then where whole vectors begin again.
  template <class Gain>
  HWY_INLINE void second_sweep(int64_t row, int64_t begin, int64_t length, const RowTerms<T>& terms, Gain gain_at) const {
    const int64_t first = row * spec.width + begin, inside = std::clamp<int64_t>(measured_width(spec) - begin, 0, length);
    const int64_t cuts[] = {0, inside, std::min(length, inside + to_aligned<T>(first + inside)), length};
    for (int i = 0; i < 3; ++i) {
      const int64_t from = cuts[i], count = cuts[i + 1] - from, start = first + from, head = to_aligned<T>(start);
      if (count == 0) continue;
      const auto gain_from = [&](auto at) HWY_ATTR { return gain_at(at, from); };
      if (streamed)
        columns<StreamedVector>(start, head, count, terms, i == 0, gain_from);
      else
        columns<WholeVector>(start, head, count, terms, i == 0, gain_from);
    }
  }

  // First sweep over a run of n columns, from element `start` on, of neighbouring rows, whose gains begin at g. The parts, if not null, grow by the
  // rows' terms of dgain and dbias: here, where no result is written, there is time for it.
  template <int kRows>
  HWY_INLINE void first_sweep(int64_t row, int64_t begin, int64_t n, const T* g, T* gain_part, T* bias_part, RowSums (&total)[kRows]) const {
    const T *xs[kRows], *dys[kRows];
    Vec<T> m[kRows], r[kRows], o[kRows];
    for (int i = 0; i < kRows; ++i) {
      const int64_t start = (row + i) * spec.width + begin;
      const RowScale<T> s = scale(row + i);
      xs[i] = x + start, dys[i] = dy + start, m[i] = set(s.mean), r[i] = set(s.rstd), o[i] = set(s.offset);
    }
    const Vec<T> one = set(T{1});
    double sums[2 * kRows] = {};
    grown_sums<2 * kRows, T, 2>(n, sums, [&](auto at, Vec<T>* sum) HWY_ATTR {
      const Vec<T> gain_v = g ? at.load(g) : one;
      Vec<T> dgain_v = gain_part ? at.load(gain_part) : one, dbias_v = bias_part ? at.load(bias_part) : one;
      for (int i = 0; i < kRows; ++i) {
        const Vec<T> dy_v = at.load(dys[i]), a = hn::Mul(dy_v, gain_v);
        const Vec<T> xhat = at.keep(hn::MulAdd(hn::Sub(at.load(xs[i]), m[i]), r[i], o[i]));
        sum[2 * i] = hn::Add(sum[2 * i], a);
        sum[2 * i + 1] = hn::MulAdd(a, xhat, sum[2 * i + 1]);
        dgain_v = hn::MulAdd(dy_v, xhat, dgain_v);
        dbias_v = hn::Add(dy_v, dbias_v);
      }
      if (gain_part) at.store(gain_part, dgain_v);
      if (bias_part) at.store(bias_part, dbias_v);
    });
    for (int i = 0; i < kRows; ++i) total[i].a += sums[2 * i], total[i].ax += sums[2 * i + 1];
  }

  // Neighbouring rows with gains by element, both sweeps while they are in the cache. gain_part and bias_part [affine_count] grow. More than one row
  // must use gain in order and once.
  template <int kRows>
  void rows_by_element(int64_t row, T* gain_part, T* bias_part) const {
    const auto part = [](auto* all, int64_t index) { return all ? all + index : nullptr; };
    RowSums sum[kRows];
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      first_sweep<kRows>(row, begin, length, part(gain, index), part(gain_part, index), part(bias_part, index), sum);
    });
    const Vec<T> one = set(T{1});
    for (int i = 0; i < kRows && dx; ++i) {
      const RowTerms<T> terms = row_terms(spec, scale(row + i), sum[i]);
      for_each_run(spec, row + i, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
        const T* const g = part(gain, index);
        second_sweep(row + i, begin, length, terms, [=](auto at, int64_t from) HWY_ATTR { return g ? at.load(g + from) : one; });
      });
    }
  }

  void rows_by_element(int64_t row, int64_t end, T* gain_part, T* bias_part) const {
    if (in_pairs<T>(spec) && affine_by_row(spec))
      for (; row + 2 <= end; row += 2) rows_by_element<2>(row, gain_part, bias_part);
    for (; row < end; ++row) rows_by_element<1>(row, gain_part, bias_part);
  }

  // One row with gains constant over runs. run_sums, if not null, receives sum(dy x-hat) and sum(dy) of each run.
  void row_by_run(int64_t row, double* run_sums) const {
    const auto gain_of = [&](int64_t index) { return gain && spec.affine_count > 0 ? gain[index] : T{1}; };
    RowSums sum[1];
    int64_t run = 0;
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      RowSums one[1];
      first_sweep<1>(row, begin, length, nullptr, nullptr, nullptr, one);
      const double g = static_cast<double>(gain_of(index));
      sum[0].a += g * one[0].a, sum[0].ax += g * one[0].ax;
      if (run_sums) {
        run_sums[2 * run] = one[0].ax;
        run_sums[2 * run + 1] = one[0].a;
      }
      ++run;
    });
    if (!dx) return;
    const RowTerms<T> terms = row_terms(spec, scale(row), sum[0]);
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const Vec<T> g = set(gain_of(index));
      second_sweep(row, begin, length, terms, [=](auto, int64_t) HWY_ATTR { return g; });
    });
  }

  // Layer norm and its like: rows in fixed chunks, each with its own partial sums of dgain and dbias, added in order at the end. A sum in T has as
  // many terms as a chunk has rows, so these are 64 at most (but where a row has few of the parameters); and not fewer than room for the sums allows.
  void by_element() const {
    const bool parameters = dgain || dbias;
    const int64_t wide = spec.affine_count > spec.width ? (spec.affine_count + spec.width - 1) / spec.width : 1;
    const int64_t least = !parameters || spec.width > 4096 ? 4 : std::max(std::min<int64_t>(64, parallel_elements / spec.width), 16 * wide);
    const int64_t chunk = std::max(least, std::min<int64_t>(64, (spec.rows + 127) / 128)), chunks = (spec.rows + chunk - 1) / chunk;
    const Scratch<T> parts(parameters ? 2 * chunks * spec.affine_count : 0);
    parallel_for(chunks, std::max<int64_t>(1, parallel_elements / (chunk * spec.width)), [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) {
        T* const part = parameters ? parts.data() + 2 * c * spec.affine_count : nullptr;
        if (part) std::fill(part, part + 2 * spec.affine_count, T{0});
        rows_by_element(c * chunk, std::min(spec.rows, (c + 1) * chunk), dgain ? part : nullptr, dbias ? part + spec.affine_count : nullptr);
      }
      hwy::FlushStream();
    });
    if (parameters) add_parts(chunks, parts.data());
  }

  void add_parts(int64_t chunks, const T* parts) const {
    parallel_for(spec.affine_count, std::max<int64_t>(64, parallel_elements / chunks), [&](int64_t first, int64_t last) {
      constexpr int64_t block = 256;
      for (T* const result : {dgain, dbias}) {
        const T* const part = parts + (result == dbias ? spec.affine_count : 0);
        for (int64_t begin = first; begin < last && result; begin += block) {
          const int64_t n = std::min(block, last - begin);
          double total[block] = {};
          for (int64_t c = 0; c < chunks; ++c)
            for (int64_t i = 0; i < n; ++i) total[i] += static_cast<double>(part[2 * c * spec.affine_count + begin + i]);
          for (int64_t i = 0; i < n; ++i) result[begin + i] = static_cast<T>(total[i]);
        }
      }
    });
  }

  // Group and instance norm, or no affine parameters at all.
  void by_run() const {
    const bool parameters = spec.affine_count > 0 && (dgain || dbias);
    const int64_t runs = parameters ? spec.width / spec.affine_inner + 2 : 0;  // at most this many in a row
    const Scratch<double> run_sums(2 * spec.rows * runs);
    parallel_for(spec.rows, std::max<int64_t>(1, parallel_elements / spec.width), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) row_by_run(row, parameters ? run_sums.data() + 2 * row * runs : nullptr);
      hwy::FlushStream();
    });
    if (!parameters) return;
    const Scratch<double> total(2 * spec.affine_count);
    std::fill(total.data(), total.data() + 2 * spec.affine_count, 0.0);
    for (int64_t row = 0; row < spec.rows; ++row) {
      const double* s = run_sums.data() + 2 * row * runs;
      for_each_run(spec, row, [&](int64_t, int64_t, int64_t index) {
        total.data()[2 * index] += *s++;
        total.data()[2 * index + 1] += *s++;
      });
    }
    for (int64_t i = 0; i < spec.affine_count; ++i) {
      if (dgain) dgain[i] = static_cast<T>(total.data()[2 * i]);
      if (dbias) dbias[i] = static_cast<T>(total.data()[2 * i + 1]);
    }
  }
};

template <class T>
struct CpuRowNorm final : RowNormPart<T> {
  void forward(const RowNorm& spec, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd) const override {
    RowForward<T>{spec, x, gain, bias, y, mean, rstd}.all();
  }

  void backward(const RowNorm& spec, const T* x, const T* gain, const T* mean, const T* rstd, const T* dy, T* dx, T* dgain, T* dbias) const override {
    if (spec.rows == 0 || spec.width == 0) {
      if (dgain) std::fill(dgain, dgain + spec.affine_count, T{0});
      if (dbias) std::fill(dbias, dbias + spec.affine_count, T{0});
      return;
    }
    const RowBackward<T> work{spec, x, gain, mean, rstd, dy, dx, dgain, dbias};
    if (affine_by_element(spec)) return work.by_element();
    work.by_run();
  }
};

const RowNormPart<float>* row_norm_f32() {
  static const CpuRowNorm<float> part;
  return &part;
}
const RowNormPart<double>* row_norm_f64() {
  static const CpuRowNorm<double> part;
  return &part;
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {
HWY_EXPORT(row_norm_f32);
HWY_EXPORT(row_norm_f64);
template <>
const RowNormPart<float>& row_norm_part() {
  return *HWY_DYNAMIC_DISPATCH(row_norm_f32)();
}
template <>
const RowNormPart<double>& row_norm_part() {
  return *HWY_DYNAMIC_DISPATCH(row_norm_f64)();
}
}  // namespace lamina::kernels
#endif
