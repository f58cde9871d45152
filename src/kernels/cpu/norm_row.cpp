// Row normaliser: statistics over runs of a row, and its backward.

#include <lamina/core/parallel.h>

#include <algorithm>

#include "kernels/cpu/norm_parts.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_row.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/measure.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t parallel_elements = 32768;  // less work than this stays on one thread

int64_t measured_width(const RowNorm& spec) { return spec.measured > 0 ? spec.measured : spec.width; }

// Whether gain and bias change along a row with every element (layer norm), or are constant over runs of affine_inner elements.
bool affine_by_element(const RowNorm& spec) { return spec.affine_count > 0 && spec.affine_inner == 1; }

// Calls f(begin, length, index) for the runs of columns of a row whose affine parameters are one entry `index`, or, by element, the contiguous
// entries from `index` on.
template <class F>
HWY_INLINE void for_each_run(const RowNorm& spec, int64_t row, F&& f) {
  if (spec.affine_count == 0 || (spec.affine_inner == 1 && spec.affine_count == spec.width)) return f(int64_t{0}, spec.width, int64_t{0});
  for (int64_t begin = 0; begin < spec.width;) {
    const int64_t element = row * spec.width + begin;
    const int64_t index = element / spec.affine_inner % spec.affine_count;
    const int64_t left = spec.affine_inner == 1 ? spec.affine_count - index : spec.affine_inner - element % spec.affine_inner;
    const int64_t length = std::min(left, spec.width - begin);
    f(begin, length, index);
    begin += length;
  }
}

// y = x-hat gain + bias over n elements; gain_at(at) and bias_at(at) give vectors.
template <class T, class Gain, class Bias>
HWY_INLINE void normalise(int64_t n, const Statistics<T>& s, const T* x, Gain gain_at, Bias bias_at, T* y) {
  const Vec<T> mean = set(s.mean), rstd = set(s.rstd), offset = set(static_cast<T>(-s.shift * s.rstd));
  for_each_vector<T>(n, [&](auto at) HWY_ATTR {
    const Vec<T> xhat = hn::MulAdd(hn::Sub(at.load(x), mean), rstd, offset);
    at.store(y, hn::MulAdd(xhat, gain_at(at), bias_at(at)));
  });
}

template <class T>
void forward_row(const RowNorm& spec, int64_t row, const Statistics<T>& s, const T* x, const T* gain, const T* bias, T* y) {
  const Vec<T> one = set(T{1}), none = zero<T>();
  for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
    if (affine_by_element(spec)) {
      const T *g = gain ? gain + index : nullptr, *b = bias ? bias + index : nullptr;
      normalise<T>(
          length, s, x + begin, [=](auto at) HWY_ATTR { return g ? at.load(g) : one; }, [=](auto at) HWY_ATTR { return b ? at.load(b) : none; },
          y + begin);
    } else {
      const bool affine = spec.affine_count > 0;
      const Vec<T> g = affine && gain ? set(gain[index]) : one, b = affine && bias ? set(bias[index]) : none;
      normalise<T>(
          length, s, x + begin, [=](auto) HWY_ATTR { return g; }, [=](auto) HWY_ATTR { return b; }, y + begin);
    }
  });
}

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

// Second sweep over n columns of a row; dgain and dbias, if not null, grow by the row's terms. One row at a time: stores that alternate between
// rows cost twice as much beyond the cache.
template <class T, class Gain>
HWY_INLINE void backward_columns(int64_t n, const RowTerms<T>& row, bool measured, const T* x, const T* dy, Gain gain_at, T* dx, T* dgain, T* dbias) {
  const Vec<T> mean = set(row.mean), rstd = set(row.rstd), offset = set(row.offset);
  const Vec<T> mean_a = set(measured ? row.mean_a : T{0}), mean_ax = set(measured ? row.mean_ax : T{0});
  for_each_vector<T>(n, [&](auto at) HWY_ATTR {
    const Vec<T> dy_v = at.load(dy), xhat = hn::MulAdd(hn::Sub(at.load(x), mean), rstd, offset);
    if (dx) at.store(dx, hn::Mul(rstd, hn::NegMulAdd(xhat, mean_ax, hn::MulSub(dy_v, gain_at(at), mean_a))));
    if (dgain) at.store(dgain, hn::MulAdd(dy_v, xhat, at.load(dgain)));
    if (dbias) at.store(dbias, hn::Add(dy_v, at.load(dbias)));
  });
}

// The same for the columns [begin, begin + length), cut where the measured entries end.
template <class T, class Gain>
HWY_INLINE void backward_run(const RowNorm& spec, int64_t begin, int64_t length, const RowTerms<T>& row, const T* x, const T* dy, Gain gain_at, T* dx,
                             T* dgain, T* dbias) {
  const int64_t inside = std::clamp<int64_t>(measured_width(spec) - begin, 0, length);
  const auto columns = [&](int64_t from, int64_t count, bool measured) HWY_ATTR {
    const int64_t at = begin + from;
    backward_columns<T>(
        count, row, measured, x + at, dy + at, [&](auto v) HWY_ATTR { return gain_at(v, from); }, dx ? dx + at : nullptr,
        dgain ? dgain + from : nullptr, dbias ? dbias + from : nullptr);
  };
  if (inside > 0) columns(0, inside, true);
  if (inside < length) columns(inside, length - inside, false);
}

// The arrays of one row_backward call.
template <class T>
struct RowBackward {
  const RowNorm& spec;
  const T *x, *gain, *mean, *rstd, *dy;
  T *dx, *dgain, *dbias;

  T mean_of(int64_t row) const { return spec.centre ? mean[row] : T{0}; }

  // First sweep with gains by element.
  RowTerms<T> terms(int64_t row) const {
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

  // One row with gains by element: both sweeps while it is in the cache. gain_part and bias_part [affine_count] grow.
  void row_by_element(int64_t row, T* gain_part, T* bias_part) const {
    const RowTerms<T> row_terms = terms(row);
    const Vec<T> one = set(T{1});
    for_each_run(spec, row, [&](int64_t begin, int64_t length, int64_t index) HWY_ATTR {
      const T* g = gain ? gain + index : nullptr;
      const int64_t start = row * spec.width;
      backward_run<T>(
          spec, begin, length, row_terms, x + start, dy + start, [=](auto at, int64_t from) HWY_ATTR { return g ? at.load(g + from) : one; },
          dx ? dx + start : nullptr, gain_part ? gain_part + index : nullptr, bias_part ? bias_part + index : nullptr);
    });
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
      backward_run<T>(
          spec, begin, length, terms, x_row, dy_row, [=](auto, int64_t) HWY_ATTR { return g; }, dx + row * spec.width, nullptr, nullptr);
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
        for (int64_t row = c * chunk; row < std::min(spec.rows, (c + 1) * chunk); ++row) row_by_element(row, gain_part, bias_part);
      }
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
    parallel_for(spec.rows, std::max<int64_t>(1, parallel_elements / std::max<int64_t>(spec.width, 1)), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* x_row = x + row * spec.width;
        const Statistics<T> s = measure(spec.centre, spec.eps, measured_width(spec), x_row);
        if (spec.centre) mean[row] = s.mean;
        rstd[row] = s.rstd;
        forward_row(spec, row, s, x_row, gain, bias, y + row * spec.width);
      }
    });
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
