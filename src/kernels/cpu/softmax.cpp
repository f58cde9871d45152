// Softmax, log-softmax and cross-entropy.

#include <lamina/core/parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/sums.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t parallel_elements = 16384;  // less work than this stays on one thread

// The largest entry. A NaN may or may not be passed over: the sum of exponentials that follows makes the row NaN in any case.
template <class T>
HWY_INLINE T largest(int64_t n, const T* x) {
  const Vec<T> lowest = set(-std::numeric_limits<T>::infinity());
  Vec<T> best = lowest;
  for_each_vector<T>(n, [&](auto at) HWY_ATTR { best = hn::Max(best, at.keep_or(at.load(x), lowest)); });
  return hn::GetLane(hn::MaxOfLanes(Tag<T>(), best));
}

template <class T>
void softmax_row(bool log, int64_t n, const T* x, T* y) {
  const Vec<T> top = set(largest(n, x));
  if (log) {
    const double sum = sums<T, 1>(n, [&](auto at) HWY_ATTR { return Terms<T, 1>{{exp(hn::Sub(at.load(x), top))}}; })[0];
    const Vec<T> log_sum = set(static_cast<T>(std::log(sum)));
    for_each_vector<T>(n, [&](auto at) HWY_ATTR { at.store(y, hn::Sub(hn::Sub(at.load(x), top), log_sum)); });
    return;
  }
  const double sum = sums<T, 1>(n, [&](auto at) HWY_ATTR {
    const Vec<T> e = exp(hn::Sub(at.load(x), top));
    at.store(y, e);
    return Terms<T, 1>{{e}};
  })[0];
  const Vec<T> scale = set(static_cast<T>(1 / sum));
  for_each_vector<T>(n, [&](auto at) HWY_ATTR { at.store(y, hn::Mul(at.load(y), scale)); });
}

template <class T>
void softmax_row_backward(bool log, int64_t n, const T* y, const T* dy, T* dx) {
  if (log) {
    const Vec<T> total = set(static_cast<T>(sums<T, 1>(n, [&](auto at) HWY_ATTR { return Terms<T, 1>{{at.load(dy)}}; })[0]));
    for_each_vector<T>(n, [&](auto at) HWY_ATTR { at.store(dx, hn::NegMulAdd(exp(at.load(y)), total, at.load(dy))); });
    return;
  }
  const Vec<T> dot = set(static_cast<T>(sums<T, 1>(n, [&](auto at) HWY_ATTR { return Terms<T, 1>{{hn::Mul(at.load(y), at.load(dy))}}; })[0]));
  for_each_vector<T>(n, [&](auto at) HWY_ATTR { at.store(dx, hn::Mul(at.load(y), hn::Sub(at.load(dy), dot))); });
}

// Columns side by side: the axis runs down `axis` rows that lie `inner` apart, `width` columns at a time.
constexpr int64_t max_columns = 256;

// sum over the axis of f(element offset, at) for each column, in T over 128 rows and in double beyond.
template <class T, class F>
HWY_INLINE void column_sums(int64_t axis, int64_t inner, int64_t width, F f, double* totals) {
  constexpr int64_t chunk = 128;
  HWY_ALIGN T acc[max_columns];
  std::fill(totals, totals + width, 0.0);
  for (int64_t first = 0; first < axis; first += chunk) {
    std::fill(acc, acc + width, T{0});
    for (int64_t k = first; k < std::min(axis, first + chunk); ++k)
      for_each_vector<T>(width, [&](auto at) HWY_ATTR { at.store(acc, hn::Add(at.load(acc), f(k * inner, at))); });
    for (int64_t c = 0; c < width; ++c) totals[c] += static_cast<double>(acc[c]);
  }
}

template <class T>
void softmax_columns(bool log, int64_t axis, int64_t inner, int64_t width, const T* x, T* y) {
  HWY_ALIGN T top[max_columns], factor[max_columns];
  double totals[max_columns];
  std::fill(top, top + width, -std::numeric_limits<T>::infinity());
  for (int64_t k = 0; k < axis; ++k)
    for_each_vector<T>(width, [&](auto at) HWY_ATTR { at.store(top, hn::Max(at.load(top), at.load(x + k * inner))); });
  column_sums<T>(
      axis, inner, width,
      [&](int64_t row, auto at) HWY_ATTR {
        const Vec<T> e = exp(hn::Sub(at.load(x + row), at.load(top)));
        if (!log) at.store(y + row, e);
        return e;
      },
      totals);
  for (int64_t c = 0; c < width; ++c) factor[c] = static_cast<T>(log ? std::log(totals[c]) : 1 / totals[c]);
  for (int64_t k = 0; k < axis; ++k) {
    const int64_t row = k * inner;
    for_each_vector<T>(width, [&](auto at) HWY_ATTR {
      if (log)
        at.store(y + row, hn::Sub(hn::Sub(at.load(x + row), at.load(top)), at.load(factor)));
      else
        at.store(y + row, hn::Mul(at.load(y + row), at.load(factor)));
    });
  }
}

template <class T>
void softmax_columns_backward(bool log, int64_t axis, int64_t inner, int64_t width, const T* y, const T* dy, T* dx) {
  HWY_ALIGN T total[max_columns];
  double totals[max_columns];
  column_sums<T>(
      axis, inner, width, [&](int64_t row, auto at) HWY_ATTR { return log ? at.load(dy + row) : hn::Mul(at.load(y + row), at.load(dy + row)); },
      totals);
  for (int64_t c = 0; c < width; ++c) total[c] = static_cast<T>(totals[c]);
  for (int64_t k = 0; k < axis; ++k) {
    const int64_t row = k * inner;
    for_each_vector<T>(width, [&](auto at) HWY_ATTR {
      const Vec<T> y_v = at.load(y + row), dy_v = at.load(dy + row), total_v = at.load(total);
      at.store(dx + row, log ? hn::NegMulAdd(exp(y_v), total_v, dy_v) : hn::Mul(y_v, hn::Sub(dy_v, total_v)));
    });
  }
}

// Calls columns(offset, width) for all blocks of columns of [outer, axis, inner], or row(offset) where the axis is the last.
template <class Row, class Columns>
void for_each_axis(int64_t outer, int64_t axis, int64_t inner, Row row, Columns columns) {
  if (outer == 0 || axis == 0 || inner == 0) return;
  if (inner == 1) {
    parallel_for(outer, std::max<int64_t>(1, parallel_elements / axis), [&](int64_t first, int64_t last) {
      for (int64_t o = first; o < last; ++o) row(o * axis);
    });
    return;
  }
  const int64_t blocks = (inner + max_columns - 1) / max_columns;
  parallel_for(outer * blocks, std::max<int64_t>(1, parallel_elements / (axis * std::min(inner, max_columns))), [&](int64_t first, int64_t last) {
    for (int64_t u = first; u < last; ++u) {
      const int64_t begin = u % blocks * max_columns;
      columns(u / blocks * axis * inner + begin, std::min(max_columns, inner - begin));
    }
  });
}

// loss of one row; *lse receives log-sum-exp. Differences to the largest logit are formed before anything is rounded.
template <class T>
T cross_entropy_row(int64_t classes, const T* x, int64_t label, double smoothing, bool counted, T* lse) {
  const T top = largest(classes, x);
  const Vec<T> top_v = set(top);
  const double log_sum = std::log(sums<T, 1>(classes, [&](auto at) HWY_ATTR { return Terms<T, 1>{{exp(hn::Sub(at.load(x), top_v))}}; })[0]);
  *lse = static_cast<T>(static_cast<double>(top) + log_sum);
  if (!counted) return 0;
  double loss = (1 - smoothing) * (log_sum - (static_cast<double>(x[label]) - static_cast<double>(top)));
  if (smoothing != 0) {  // only then do the other classes count: a logit of -inf may stand there otherwise
    const double below = sums<T, 1>(classes, [&](auto at) HWY_ATTR { return Terms<T, 1>{{hn::Sub(at.load(x), top_v)}}; })[0];
    loss += smoothing * (log_sum - below / static_cast<double>(classes));
  }
  return static_cast<T>(loss);
}

// exp(x - lse) sums to 1 but for the rounding of the saved lse, which is not small beside large logits; dividing by the sum removes it.
template <class T>
void cross_entropy_row_backward(int64_t classes, const T* x, T lse, int64_t label, double smoothing, double dloss, T* dx) {
  const Vec<T> lse_v = set(lse);
  const double sum = sums<T, 1>(classes, [&](auto at) HWY_ATTR {
    const Vec<T> p = exp(hn::Sub(at.load(x), lse_v));
    at.store(dx, p);
    return Terms<T, 1>{{p}};
  })[0];
  const Vec<T> scale = set(static_cast<T>(dloss / sum)), floor = set(static_cast<T>(-dloss * smoothing / static_cast<double>(classes)));
  for_each_vector<T>(classes, [&](auto at) HWY_ATTR { at.store(dx, hn::MulAdd(at.load(dx), scale, floor)); });
  dx[label] -= static_cast<T>(dloss * (1 - smoothing));
}

template <class T>
struct CpuSoftmax final : SoftmaxKernels<T> {
  void softmax(bool log, int64_t outer, int64_t axis, int64_t inner, const T* x, T* y) const override {
    for_each_axis(
        outer, axis, inner, [&](int64_t at) { softmax_row(log, axis, x + at, y + at); },
        [&](int64_t at, int64_t width) { softmax_columns(log, axis, inner, width, x + at, y + at); });
  }

  void softmax_backward(bool log, int64_t outer, int64_t axis, int64_t inner, const T* y, const T* dy, T* dx) const override {
    for_each_axis(
        outer, axis, inner, [&](int64_t at) { softmax_row_backward(log, axis, y + at, dy + at, dx + at); },
        [&](int64_t at, int64_t width) { softmax_columns_backward(log, axis, inner, width, y + at, dy + at, dx + at); });
  }

  void cross_entropy(int64_t rows, int64_t classes, const T* logits, const int64_t* labels, int64_t ignore, double smoothing, T* loss,
                     T* lse) const override {
    parallel_for(rows, std::max<int64_t>(1, parallel_elements / std::max<int64_t>(classes, 1)), [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; ++n)
        loss[n] = cross_entropy_row(classes, logits + n * classes, labels[n], smoothing, labels[n] != ignore, lse + n);
    });
  }

  void cross_entropy_backward(int64_t rows, int64_t classes, const T* logits, const T* lse, const int64_t* labels, int64_t ignore, double smoothing,
                              const T* dloss, T* dlogits) const override {
    parallel_for(rows, std::max<int64_t>(1, parallel_elements / std::max<int64_t>(classes, 1)), [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; ++n) {
        T* const dx = dlogits + n * classes;
        if (labels[n] == ignore)
          std::fill(dx, dx + classes, T{0});
        else
          cross_entropy_row_backward(classes, logits + n * classes, lse[n], labels[n], smoothing, static_cast<double>(dloss[n]), dx);
      }
    });
  }
};

const SoftmaxKernels<float>* softmax_f32() {
  static const CpuSoftmax<float> kernels;
  return &kernels;
}
const SoftmaxKernels<double>* softmax_f64() {
  static const CpuSoftmax<double> kernels;
  return &kernels;
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {
HWY_EXPORT(softmax_f32);
HWY_EXPORT(softmax_f64);
template <>
const SoftmaxKernels<float>& CpuBackend::softmax<float>() {
  return *HWY_DYNAMIC_DISPATCH(softmax_f32)();
}
template <>
const SoftmaxKernels<double>& CpuBackend::softmax<double>() {
  return *HWY_DYNAMIC_DISPATCH(softmax_f64)();
}
}  // namespace lamina::kernels
#endif
