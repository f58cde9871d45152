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

// What the second sweep of the backward needs to know of a row: dx = rstd (gain dy - (x - mean) slope - level), which is rstd (a - mean(a) - x-hat
// mean(a x-hat)) with a = gain dy. And what the rounding of the saved mean took from x-hat.
template <class T>
struct RowTerms {
  T mean, rstd, offset, slope, level;
};

// A row's sums in the first sweep: of x - mean, a, and a (x - mean) rstd.
struct RowSums {
  double d = 0, a = 0, ax = 0;
};

template <class T>
RowTerms<T> row_terms(const RowNorm& spec, const T* x, T mean, T rstd, RowSums sum) {
  const int64_t measured = measured_width(spec);
  const double per_entry = 1 / static_cast<double>(std::max<int64_t>(measured, 1));
  if (spec.centre && measured < spec.width) {
    const Vec<T> m = set(mean);
    sum.d = sums<T, 1>(measured, [&](auto at) HWY_ATTR { return Terms<T, 1>{{hn::Sub(at.load(x), m)}}; })[0];
  }
  const double offset = spec.centre ? -sum.d * per_entry * static_cast<double>(rstd) : 0;
  const double mean_a = spec.centre ? sum.a * per_entry : 0, mean_ax = (sum.ax + sum.a * offset) * per_entry;
  return {mean, rstd, static_cast<T>(offset), static_cast<T>(mean_ax * static_cast<double>(rstd)), static_cast<T>(mean_a + mean_ax * offset)};
}

// The arrays of one row_backward call.
template <class T>
struct RowBackward {
  const RowNorm& spec;
  const T *x, *gain, *mean, *rstd, *dy;
  T *dx, *dgain, *dbias;
  const bool streamed = dx && streams(dx, 3 * spec.rows * spec.width, run_length(spec));

  T mean_of(int64_t row) const { return spec.centre ? mean[row] : T{0}; }

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
  // rows' terms of dgain (but for what the rounding of the mean took) and dbias: here, where no result is written, there is time for it.
  template <int kRows>
  HWY_INLINE void first_sweep(int64_t row, int64_t begin, int64_t n, const T* g, T* gain_part, T* bias_part, RowSums (&total)[kRows]) const {
    const T *xs[kRows], *dys[kRows];
    Vec<T> m[kRows], r[kRows];
    for (int i = 0; i < kRows; ++i) {
      const int64_t at_row = row + i, start = at_row * spec.width + begin;
      xs[i] = x + start, dys[i] = dy + start, m[i] = set(mean_of(at_row)), r[i] = set(rstd[at_row]);
    }
    const Vec<T> one = set(T{1});
    double sums[3 * kRows] = {};
    grown_sums<3 * kRows, T>(n, sums, [&](auto at, Vec<T>* sum) HWY_ATTR {
      const Vec<T> gain_v = g ? at.load(g) : one;
      Vec<T> dgain_v = gain_part ? at.load(gain_part) : one, dbias_v = bias_part ? at.load(bias_part) : one;
      for (int i = 0; i < kRows; ++i) {
        const Vec<T> dy_v = at.load(dys[i]), d = at.keep(hn::Sub(at.load(xs[i]), m[i])), a = hn::Mul(dy_v, gain_v), xhat = hn::Mul(d, r[i]);
        sum[3 * i] = hn::Add(sum[3 * i], d);
        sum[3 * i + 1] = hn::Add(sum[3 * i + 1], a);
        sum[3 * i + 2] = hn::MulAdd(a, xhat, sum[3 * i + 2]);
        dgain_v = hn::MulAdd(dy_v, xhat, dgain_v);
        dbias_v = hn::Add(dy_v, dbias_v);
      }
      if (gain_part) at.store(gain_part, dgain_v);
      if (bias_part) at.store(bias_part, dbias_v);
    });
    for (int i = 0; i < kRows; ++i) total[i].d += sums[3 * i], total[i].a += sums[3 * i + 1], total[i].ax += sums[3 * i + 2];
  }

  // What the rounding of the saved mean took from x-hat, and so from dgain, over n columns from element `start` on.
  void add_offset(int64_t start, int64_t n, const RowTerms<T>& row, T* gain_part) const {
    if (!gain_part || std::abs(row.offset) <= std::numeric_limits<T>::epsilon() / 4) return;
    const Vec<T> offset = set(row.offset);
    const T* const dys = dy + start;
    for_each_vector<T>(n, [&](auto at) HWY_ATTR { at.store(gain_part, hn::MulAdd(at.load(dys), offset, at.load(gain_part))); });
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
    RowTerms<T> terms[kRows];
    for (int i = 0; i < kRows; ++i) terms[i] = row_terms(spec, x + (row + i) * spec.width, mean_of(row + i), rstd[row + i], sum[i]);
    const Vec<T> one = set(T{1});
    for (int i = 0; i < kRows; ++i) {
      for_each_run(spec, row + i, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
        add_offset((row + i) * spec.width + begin, length, terms[i], part(gain_part, index));
        const T* const g = part(gain, index);
        if (dx) second_sweep(row + i, begin, length, terms[i], [=](auto at, int64_t from) HWY_ATTR { return g ? at.load(g + from) : one; });
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
      sum[0].d += one[0].d, sum[0].a += g * one[0].a, sum[0].ax += g * one[0].ax;
      if (run_sums) {
        run_sums[2 * run] = one[0].ax;
        run_sums[2 * run + 1] = one[0].a;
      }
      ++run;
    });
    const RowTerms<T> terms = row_terms(spec, x + row * spec.width, mean_of(row), rstd[row], sum[0]);
    if (run_sums)
      for (int64_t i = 0; i < run; ++i) run_sums[2 * i] += run_sums[2 * i + 1] * static_cast<double>(terms.offset);
    if (!dx) return;
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const Vec<T> g = set(gain_of(index));
      second_sweep(row, begin, length, terms, [=](auto, int64_t) HWY_ATTR { return g; });
    });
  }

  // Layer norm and its like: rows in fixed chunks, each with its own partial sums of dgain and dbias, added in order at the end. There are few, as
  // they come from other threads' caches.
  void by_element() const {
    const bool parameters = dgain || dbias;
    const int64_t elements = spec.rows * spec.width, wide = (spec.affine_count + spec.width - 1) / spec.width;
    const int64_t most = elements < parallel_elements ? 1 : std::clamp<int64_t>(elements / (2 * parallel_elements), 2, 128);
    const int64_t least = !parameters ? 4 : spec.width > 4096 ? 4 : 16 * wide;
    const int64_t chunk = parameters ? std::max(least, (spec.rows + most - 1) / most) : least, chunks = (spec.rows + chunk - 1) / chunk;
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
