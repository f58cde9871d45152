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

// What the second sweep of the backward needs to know of a row: dx = rstd (a - mean_a - x-hat mean_ax) with a = gain dy.
template <class T>
struct RowTerms {
  T mean, rstd, offset, mean_a, mean_ax;
};

template <class T>
RowTerms<T> row_terms(const RowNorm& spec, const T* x, T mean, T rstd, double sum_d, double sum_a, double sum_ax) {
  const int64_t measured = measured_width(spec);
  const double count = static_cast<double>(std::max<int64_t>(measured, 1));
  if (spec.centre && measured < spec.width) {
    const Vec<T> m = set(mean);
    sum_d = sums<T, 1>(measured, [&](auto at) HWY_ATTR { return Terms<T, 1>{{hn::Sub(at.load(x), m)}}; })[0];
  }
  const double shift = spec.centre ? sum_d / count : 0;  // the rounding of the saved mean
  const double offset = -shift * static_cast<double>(rstd);
  return {mean, rstd, static_cast<T>(offset), static_cast<T>(spec.centre ? sum_a / count : 0), static_cast<T>((sum_ax + sum_a * offset) / count)};
}

// Second sweep over n columns of several rows, `head` of them before the first aligned vector; dgain and dbias, if not null, grow by the rows' terms.
template <bool kCentre, int kRows, template <class> class Whole, class T, class Gain>
HWY_INLINE void backward_columns(int64_t head, int64_t n, const RowTerms<T>* row, bool measured, const T* const* x, const T* const* dy, Gain gain_at,
                                 T* const* dx, T* dgain, T* dbias) {
  Vec<T> mean[kRows], rstd[kRows], offset[kRows], mean_a[kRows], mean_ax[kRows];
  for (int r = 0; r < kRows; ++r) {
    mean[r] = set(row[r].mean), rstd[r] = set(row[r].rstd), offset[r] = set(row[r].offset);
    mean_a[r] = set(measured ? row[r].mean_a : T{0}), mean_ax[r] = set(measured ? row[r].mean_ax : T{0});
  }
  for_each_vector_after<T, Whole>(head, n, [&](auto at) HWY_ATTR {
    const Vec<T> gain = gain_at(at);
    Vec<T> dgain_v = dgain ? at.load(dgain) : gain, dbias_v = dbias ? at.load(dbias) : gain;
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> x_v = at.load(x[r]), dy_v = at.load(dy[r]);
      const Vec<T> xhat = kCentre ? hn::MulAdd(hn::Sub(x_v, mean[r]), rstd[r], offset[r]) : hn::Mul(x_v, rstd[r]);
      const Vec<T> a = kCentre ? hn::MulSub(dy_v, gain, mean_a[r]) : hn::Mul(dy_v, gain);
      if (dx[r]) at.store_result(dx[r], hn::Mul(rstd[r], hn::NegMulAdd(xhat, mean_ax[r], a)));
      dgain_v = hn::MulAdd(dy_v, xhat, dgain_v);
      dbias_v = hn::Add(dy_v, dbias_v);
    }
    if (dgain) at.store(dgain, dgain_v);
    if (dbias) at.store(dbias, dbias_v);
  });
}

// The arrays of one row_backward call.
template <class T>
struct RowBackward {
  const RowNorm& spec;
  const T *x, *gain, *mean, *rstd, *dy;
  T *dx, *dgain, *dbias;
  const bool streamed = dx && streams(dx, spec.rows* spec.width, run_length(spec));

  T mean_of(int64_t row) const { return spec.centre ? mean[row] : T{0}; }

  // Rows `step` apart, from column `begin` on.
  template <int kRows>
  struct Rows {
    const T *x[kRows], *dy[kRows];
    T* dx[kRows];
  };
  template <int kRows>
  Rows<kRows> rows_at(int64_t row, int64_t step, int64_t begin) const {
    Rows<kRows> rows;
    for (int r = 0; r < kRows; ++r) {
      const int64_t start = (row + r * step) * spec.width + begin;
      rows.x[r] = x + start;
      rows.dy[r] = dy + start;
      rows.dx[r] = dx ? dx + start : nullptr;
    }
    return rows;
  }

  template <int kRows, template <class> class Whole, class Gain>
  HWY_INLINE void columns(const Rows<kRows>& at, int64_t head, int64_t n, const RowTerms<T>* terms, bool measured, Gain gain_at, T* gains,
                          T* biases) const {
    if (spec.centre)
      backward_columns<true, kRows, Whole, T>(head, n, terms, measured, at.x, at.dy, gain_at, at.dx, gains, biases);
    else
      backward_columns<false, kRows, Whole, T>(head, n, terms, measured, at.x, at.dy, gain_at, at.dx, gains, biases);
  }

  // Second sweep over the columns [begin, begin + length), cut where the measured entries end, and then where whole vectors begin again. Of `offset`
  // and the column they are aligned.
  template <int kRows, class Gain>
  HWY_INLINE void second_sweep(int64_t row, int64_t step, int64_t offset, int64_t begin, int64_t length, const RowTerms<T>* terms, Gain gain_at,
                               T* gain_part, T* bias_part) const {
    const int64_t inside = std::clamp<int64_t>(measured_width(spec) - begin, 0, length);
    const int64_t cuts[] = {0, inside, std::min(length, inside + to_aligned<T>(offset + begin + inside)), length};
    for (int i = 0; i < 3; ++i) {
      const int64_t from = cuts[i], count = cuts[i + 1] - from, head = to_aligned<T>(offset + begin + from);
      if (count == 0) continue;
      const Rows<kRows> at = rows_at<kRows>(row, step, begin + from);
      const auto gain_from = [&](auto v) HWY_ATTR { return gain_at(v, from); };
      T *const gains = gain_part ? gain_part + from : nullptr, *const biases = bias_part ? bias_part + from : nullptr;
      if (kRows == 1 && streamed)
        columns<kRows, StreamedVector>(at, head, count, terms, i == 0, gain_from, gains, biases);
      else
        columns<kRows, WholeVector>(at, head, count, terms, i == 0, gain_from, gains, biases);
    }
  }

  // First sweep over rows that use gain in order and once.
  template <int kRows>
  void first_sweep(int64_t first, int64_t step, RowTerms<T>* terms) const {
    const Rows<kRows> at_rows = rows_at<kRows>(first, step, 0);
    const auto row = [=](size_t i) { return first + static_cast<int64_t>(i) * step; };
    Vec<T> m[kRows], r[kRows];
    for (size_t i = 0; i < kRows; ++i) m[i] = set(mean_of(row(i))), r[i] = set(rstd[row(i)]);
    const Vec<T> one = set(T{1});
    const auto scaled = [&](auto at, int i) HWY_ATTR { return hn::Mul(at.load(at_rows.dy[i]), gain ? at.load(gain) : one); };
    if (spec.centre) {
      const auto s = row_sums<kRows, 3, T>(spec.width, [&](auto at, int i) HWY_ATTR {
        const Vec<T> d = hn::Sub(at.load(at_rows.x[i]), m[i]), a = scaled(at, i);
        return Terms<T, 3>{{d, a, hn::Mul(a, hn::Mul(d, r[i]))}};
      });
      for (size_t i = 0; i < kRows; ++i) terms[i] = row_terms(spec, at_rows.x[i], mean[row(i)], rstd[row(i)], s[i][0], s[i][1], s[i][2]);
    } else {
      const auto s = row_sums<kRows, 1, T>(
          spec.width, [&](auto at, int i) HWY_ATTR { return Terms<T, 1>{{hn::Mul(scaled(at, i), hn::Mul(at.load(at_rows.x[i]), r[i]))}}; });
      for (size_t i = 0; i < kRows; ++i) terms[i] = row_terms(spec, at_rows.x[i], T{0}, rstd[row(i)], 0, 0, s[i][0]);
    }
  }

  // Such rows, both sweeps while they are in the cache. gain_part and bias_part [width] grow.
  template <int kRows>
  void rows_in_order(int64_t row, int64_t step, int64_t offset, T* gain_part, T* bias_part) const {
    RowTerms<T> terms[kRows];
    first_sweep<kRows>(row, step, terms);
    const Vec<T> one = set(T{1});
    const T* const g = gain;
    second_sweep<kRows>(
        row, step, offset, 0, spec.width, terms, [=](auto at, int64_t from) HWY_ATTR { return g ? at.load(g + from) : one; }, gain_part, bias_part);
  }

  // First sweep over a row with gains by element.
  RowTerms<T> terms_by_element(int64_t row) const {
    const T *x_row = x + row * spec.width, *dy_row = dy + row * spec.width;
    const Vec<T> m = set(mean_of(row)), r = set(rstd[row]), one = set(T{1});
    double sum_d = 0, sum_a = 0, sum_ax = 0;
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const T *xs = x_row + begin, *dys = dy_row + begin, *g = gain ? gain + index : nullptr;
      const auto s = sums<T, 3>(length, [&](auto at) HWY_ATTR {
        const Vec<T> d = hn::Sub(at.load(xs), m), a = hn::Mul(at.load(dys), g ? at.load(g) : one);
        return Terms<T, 3>{{d, a, hn::Mul(a, hn::Mul(d, r))}};
      });
      sum_d += s[0];
      sum_a += s[1];
      sum_ax += s[2];
    });
    return row_terms(spec, x_row, mean_of(row), rstd[row], sum_d, sum_a, sum_ax);
  }

  // Such a row, both sweeps. gain_part and bias_part [affine_count] grow.
  void row_by_element(int64_t row, T* gain_part, T* bias_part) const {
    const RowTerms<T> terms = terms_by_element(row);
    const Vec<T> one = set(T{1});
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const T* g = gain ? gain + index : nullptr;
      second_sweep<1>(
          row, 1, row * spec.width, begin, length, &terms, [=](auto at, int64_t from) HWY_ATTR { return g ? at.load(g + from) : one; },
          gain_part ? gain_part + index : nullptr, bias_part ? bias_part + index : nullptr);
    });
  }

  void rows_by_element(int64_t row, int64_t end, T* gain_part, T* bias_part) const {
    if (in_pairs<T>(spec) && affine_by_row(spec)) {
      const Pairs<T> pairs(spec, row, end);
      for (int64_t k = 0; k < pairs.count(); ++k) {
        const int64_t first = pairs.row(k), offset = pairs.aligned ? first * spec.width : 0;
        if (first + pairs.step < end)
          rows_in_order<2>(first, pairs.step, offset, gain_part, bias_part);
        else if (first < end)
          rows_in_order<1>(first, 0, offset, gain_part, bias_part);
      }
    } else {
      for (; row < end; ++row) row_by_element(row, gain_part, bias_part);
    }
  }

  // One row with gains constant over runs. run_sums, if not null, receives sum(dy x-hat) and sum(dy) of each run.
  void row_by_run(int64_t row, double* run_sums) const {
    const T *x_row = x + row * spec.width, *dy_row = dy + row * spec.width;
    const Vec<T> m = set(mean_of(row)), r = set(rstd[row]);
    const auto gain_of = [&](int64_t index) { return gain && spec.affine_count > 0 ? gain[index] : T{1}; };
    double sum_d = 0, sum_a = 0, sum_ax = 0;
    int64_t run = 0;
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const T *xs = x_row + begin, *dys = dy_row + begin;
      const auto s = sums<T, 3>(length, [&](auto at) HWY_ATTR {
        const Vec<T> d = hn::Sub(at.load(xs), m), dy_v = at.load(dys);
        return Terms<T, 3>{{d, dy_v, hn::Mul(dy_v, hn::Mul(d, r))}};
      });
      const double g = static_cast<double>(gain_of(index));
      sum_d += s[0];
      sum_a += g * s[1];
      sum_ax += g * s[2];
      if (run_sums) {
        run_sums[2 * run] = s[2];
        run_sums[2 * run + 1] = s[1];
      }
      ++run;
    });
    const RowTerms<T> terms = row_terms(spec, x_row, mean_of(row), rstd[row], sum_d, sum_a, sum_ax);
    if (run_sums)
      for (int64_t i = 0; i < run; ++i) run_sums[2 * i] += run_sums[2 * i + 1] * static_cast<double>(terms.offset);
    if (!dx) return;
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const Vec<T> g = set(gain_of(index));
      second_sweep<1>(
          row, 1, row * spec.width, begin, length, &terms, [=](auto, int64_t) HWY_ATTR { return g; }, nullptr, nullptr);
    });
  }

  // Layer norm and its like: rows in fixed chunks, each with its own partial sums of dgain and dbias, added in order at the end.
  void by_element() const {
    const bool parameters = dgain || dbias;
    const int64_t wide = spec.affine_count > spec.width ? (spec.affine_count + spec.width - 1) / spec.width : 1;
    const int64_t least = !parameters ? 4 : std::max(spec.width > 4096 ? 4 : 16 * wide, parallel_elements / spec.width);
    const int64_t chunk = std::max(least, (spec.rows + 127) / 128), chunks = (spec.rows + chunk - 1) / chunk;
    const Scratch<T> parts(parameters ? 2 * chunks * spec.affine_count : 0);
    parallel_for(chunks, std::max<int64_t>(1, parallel_elements / (chunk * spec.width)), [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) {
        T* const part = parameters ? parts.data() + 2 * c * spec.affine_count : nullptr;
        if (part) std::fill(part, part + 2 * spec.affine_count, T{0});
        T *const gain_part = dgain ? part : nullptr, *const bias_part = dbias ? part + spec.affine_count : nullptr;
        rows_by_element(c * chunk, std::min(spec.rows, (c + 1) * chunk), gain_part, bias_part);
      }
      hwy::FlushStream();
    });
    if (dgain) add_parts(chunks, parts.data(), dgain);
    if (dbias) add_parts(chunks, parts.data() + spec.affine_count, dbias);
  }

  void add_parts(int64_t chunks, const T* parts, T* result) const {
    parallel_for(spec.affine_count, std::max<int64_t>(64, parallel_elements / chunks), [&](int64_t first, int64_t last) {
      constexpr int64_t block = 256;
      for (int64_t begin = first; begin < last; begin += block) {
        const int64_t n = std::min(block, last - begin);
        double total[block] = {};
        for (int64_t c = 0; c < chunks; ++c) {
          const T* part = parts + 2 * c * spec.affine_count + begin;
          for (int64_t i = 0; i < n; ++i) total[i] += static_cast<double>(part[i]);
        }
        for (int64_t i = 0; i < n; ++i) result[begin + i] = static_cast<T>(total[i]);
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
