// Reductions. Every sum is cut into fixed chunks: within a chunk several lanes accumulate in double, the chunks' results are added in order. (64
// equal terms, one after the other in f32, are off by 8 units in the last place.)

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include <lamina/core/parallel.h>
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

constexpr int64_t kGrain = 65536;    // elements below which a range is not worth a thread
constexpr int64_t kChunk = 4096;     // elements of a run that are accumulated in one go
constexpr int64_t kChunkRows = 128;  // rows, when columns are reduced
constexpr int64_t kColumns = 256;    // columns of one task

inline int64_t pieces(int64_t size, int64_t piece) { return (size + piece - 1) / piece; }

/// Sums in double of the lanes of float vectors.
struct DoubleSum {
  Vec<double> low, high;  // of the lower and the upper half of the lanes

  HWY_INLINE void add(Vec<float> v) {
#if HWY_TARGET == HWY_SCALAR  // whose single lane has no halves
    low = hn::Add(low, hn::PromoteTo(Tag<double>(), v));
#else
    const hn::Half<Tag<float>> half;
    low = hn::Add(low, hn::PromoteTo(Tag<double>(), hn::LowerHalf(half, v)));
    high = hn::Add(high, hn::PromoteTo(Tag<double>(), hn::UpperHalf(half, v)));
#endif
  }
  /// Four at once, with two roundings in f32 (none where all are equal), for a third of the work.
  HWY_INLINE void add(Vec<float> a, Vec<float> b, Vec<float> c, Vec<float> d) { add(hn::Add(hn::Add(a, b), hn::Add(c, d))); }

  HWY_INLINE void store_lanes(double* p) const {
    store(low, p);
    if (lanes<float>() > 1) store(high, p + lanes<double>());
  }
  HWY_INLINE double total() const { return sum_lanes<double>(hn::Add(low, high)); }
};

// What a reduction accumulates in, what it starts from, how vectors and how chunks combine.
template <class T>
struct Sum {
  using Acc = double;
  static constexpr T kStart = 0;
  static HWY_INLINE Vec<T> combine(Vec<T> a, Vec<T> b) { return hn::Add(a, b); }
  static double combine(double a, double b) { return a + b; }
};
template <class T>
struct Max {
  using Acc = T;
  static constexpr T kStart = -std::numeric_limits<T>::infinity();
  static HWY_INLINE Vec<T> combine(Vec<T> a, Vec<T> b) { return max_nan(a, b); }
  static double combine(double a, double b) { return std::isnan(a) || a > b ? a : b; }
};
template <class T>
struct Min {
  using Acc = T;
  static constexpr T kStart = std::numeric_limits<T>::infinity();
  static HWY_INLINE Vec<T> combine(Vec<T> a, Vec<T> b) { return min_nan(a, b); }
  static double combine(double a, double b) { return std::isnan(a) || a < b ? a : b; }
};

inline double sum_chunk(int64_t n, const double* x) {
  return sum<double>(n, [&](auto at) HWY_ATTR { return at.load(x); });
}
inline double sum_chunk(int64_t n, const float* x) {
  const int64_t step = lanes<float>();
  DoubleSum sum{zero<double>(), zero<double>()};
  int64_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) sum.add(load(x + i), load(x + i + step), load(x + i + 2 * step), load(x + i + 3 * step));
  for_each_vector<float>(n - i, [&](auto at) HWY_ATTR { sum.add(at.load(x + i)); });
  return sum.total();
}

/// One chunk of a contiguous run.
template <class T, template <class> class Op>
double reduce_chunk(int64_t n, const T* x) {
  if constexpr (std::is_same_v<Op<T>, Sum<T>>) {
    return sum_chunk(n, x);
  } else {
    const Vec<T> start = set(Op<T>::kStart);
    Vec<T> a = start, b = start;
    const int64_t step = lanes<T>();
    int64_t i = 0;
    for (; i + 2 * step <= n; i += 2 * step) {
      a = Op<T>::combine(a, load(x + i));
      b = Op<T>::combine(b, load(x + i + step));
    }
    for_each_vector<T>(n - i, [&](auto at) HWY_ATTR { a = Op<T>::combine(a, at.keep_or(at.load(x + i), start)); });
    HWY_ALIGN T lanes_of_result[HWY_MAX_BYTES / sizeof(T)];
    hn::Store(Op<T>::combine(a, b), Tag<T>(), lanes_of_result);
    double result = lanes_of_result[0];
    for (int64_t lane = 1; lane < step; ++lane) result = Op<T>::combine(result, static_cast<double>(lanes_of_result[lane]));
    return result;
  }
}

/// y[outer] over contiguous runs of `axis`.
template <class T, template <class> class Op>
void reduce_runs(int64_t outer, int64_t axis, const T* x, T* y) {
  const int64_t chunks = pieces(axis, kChunk);
  const auto chunk = [&](int64_t o, int64_t c) { return reduce_chunk<T, Op>(std::min(kChunk, axis - c * kChunk), x + o * axis + c * kChunk); };
  if (outer >= 64 || chunks <= 1) {
    parallel_for(outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, axis)), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        double result = chunks == 0 ? Op<T>::kStart : chunk(o, 0);
        for (int64_t c = 1; c < chunks; ++c) result = Op<T>::combine(result, chunk(o, c));
        y[o] = static_cast<T>(result);
      }
    });
    return;
  }
  std::vector<double> partial(static_cast<size_t>(outer * chunks));  // few long runs: their chunks are shared out
  parallel_for(outer * chunks, kGrain / kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) partial[static_cast<size_t>(task)] = chunk(task / chunks, task % chunks);
  });
  for (int64_t o = 0; o < outer; ++o) {
    const double* p = partial.data() + o * chunks;
    double result = p[0];
    for (int64_t c = 1; c < chunks; ++c) result = Op<T>::combine(result, p[c]);
    y[o] = static_cast<T>(result);
  }
}

/// acc[columns] = reduction of `rows` rows of `pitch` elements.
template <class T, template <class> class Op>
void reduce_rows(int64_t rows, int64_t pitch, int64_t columns, const T* x, T* acc) {
  for_each_vector<T>(columns, [&](auto at) HWY_ATTR {
    Vec<T> a = set(Op<T>::kStart), b = a;
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) {
      a = Op<T>::combine(a, at.load(x + r * pitch));
      b = Op<T>::combine(b, at.load(x + (r + 1) * pitch));
    }
    if (r < rows) a = Op<T>::combine(a, at.load(x + r * pitch));
    at.store(acc, Op<T>::combine(a, b));
  });
}

/// The same for sums of floats; acc has room for whole vectors.
template <class T, template <class> class Op>
void reduce_rows(int64_t rows, int64_t pitch, int64_t columns, const float* x, double* acc) {
  for_each_vector<float>(columns, [&](auto at) HWY_ATTR {
    DoubleSum sum{zero<double>(), zero<double>()};
    const auto row = [&](int64_t r) HWY_ATTR { return at.load(x + r * pitch); };
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) sum.add(row(r), row(r + 1), row(r + 2), row(r + 3));
    for (; r < rows; ++r) sum.add(row(r));
    sum.store_lanes(acc + at.index);
  });
}

/// y[outer, inner] over the middle of x[outer, axis, inner], inner > 1.
template <class T, template <class> class Op>
void reduce_columns(int64_t outer, int64_t axis, int64_t inner, const T* x, T* y) {
  using Acc = typename Op<T>::Acc;
  const int64_t chunks = std::max<int64_t>(1, pieces(axis, kChunkRows)), blocks = pieces(inner, kColumns);
  std::vector<Acc> partial(chunks == 1 ? 0 : static_cast<size_t>(outer * chunks * inner));  // [outer, chunks, inner]
  const int64_t task_size = std::max<int64_t>(1, std::min(axis, kChunkRows) * std::min(inner, kColumns));
  parallel_for(outer * chunks * blocks, std::max<int64_t>(1, kGrain / task_size), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t j = task % blocks * kColumns, chunk = task / blocks % chunks, o = task / blocks / chunks, top = chunk * kChunkRows;
      const int64_t columns = std::min(kColumns, inner - j);
      Acc acc[kColumns];
      reduce_rows<T, Op>(std::min(kChunkRows, axis - top), inner, columns, x + (o * axis + top) * inner + j, acc);
      if (chunks == 1)
        std::transform(acc, acc + columns, y + o * inner + j, [](Acc value) { return static_cast<T>(value); });
      else
        std::copy(acc, acc + columns, partial.begin() + (o * chunks + chunk) * inner + j);
    }
  });
  if (chunks == 1) return;
  parallel_for(outer * inner, std::max<int64_t>(1, kGrain / chunks), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Acc* p = partial.data() + i / inner * chunks * inner + i % inner;
      double result = p[0];
      for (int64_t c = 1; c < chunks; ++c) result = Op<T>::combine(result, static_cast<double>(p[c * inner]));
      y[i] = static_cast<T>(result);
    }
  });
}

template <class T, template <class> class Op>
void reduce_middle(int64_t outer, int64_t axis, int64_t inner, const T* x, T* y) {
  if (inner == 1) return reduce_runs<T, Op>(outer, axis, x, y);
  reduce_columns<T, Op>(outer, axis, inner, x, y);
}

inline double square_chunk(int64_t n, const double* x) {
  return sum<double>(n, [&](auto at) HWY_ATTR {
    const auto v = at.load(x);
    return hn::Mul(v, v);
  });
}
inline double square_chunk(int64_t n, const float* x) {
  const hn::Rebind<float, Tag<double>> half;
  const int64_t step = lanes<double>();
  Vec<double> a = zero<double>(), b = zero<double>();
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    const auto v = hn::PromoteTo(Tag<double>(), hn::LoadU(half, x + i)), w = hn::PromoteTo(Tag<double>(), hn::LoadU(half, x + i + step));
    a = hn::MulAdd(v, v, a);
    b = hn::MulAdd(w, w, b);
  }
  double total = sum_lanes<double>(hn::Add(a, b));
  for (; i < n; ++i) total += static_cast<double>(x[i]) * x[i];
  return total;
}

template <class T>
bool finite_chunk(int64_t n, const T* x) {
  // x - x is 0, or NaN for infinities and NaN.
  return sum<T>(n, [&](auto at) HWY_ATTR {
           const auto v = at.load(x);
           return hn::Sub(v, v);
         }) == T(0);
}

template <class T>
struct CpuReduce final : ReduceKernels<T> {
  void reduce(Reduction op, int64_t outer, int64_t axis, int64_t inner, const T* x, T* y) const override {
    if (outer * inner == 0) return;
    switch (op) {
      case Reduction::sum: return reduce_middle<T, Sum>(outer, axis, inner, x, y);
      case Reduction::max: return reduce_middle<T, Max>(outer, axis, inner, x, y);
      case Reduction::min: return reduce_middle<T, Min>(outer, axis, inner, x, y);
    }
    std::abort();
  }

  void arg_reduce(bool largest, int64_t outer, int64_t axis, int64_t inner, const T* x, int64_t* y) const override {
    parallel_for(outer * inner, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, axis)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* p = x + i / inner * axis * inner + i % inner;
        int64_t best = 0;
        for (int64_t j = 1; j < axis && !std::isnan(p[best * inner]); ++j) {
          const T v = p[j * inner], b = p[best * inner];
          if (std::isnan(v) || (largest ? v > b : v < b)) best = j;
        }
        y[i] = best;
      }
    });
  }

  void sum_of_squares(int64_t n, const T* x, double* sum) const override {
    const int64_t chunks = pieces(n, kChunk);
    std::vector<double> partial(static_cast<size_t>(chunks));
    parallel_for(chunks, kGrain / kChunk, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) partial[static_cast<size_t>(c)] = square_chunk(std::min(kChunk, n - c * kChunk), x + c * kChunk);
    });
    double total = 0;
    for (const double p : partial) total += p;
    *sum += total;
  }

  void all_finite(int64_t n, const T* x, uint8_t* result) const override {
    std::atomic<bool> finite{true};
    parallel_for(pieces(n, kChunk), kGrain / kChunk, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end && finite.load(std::memory_order_relaxed); ++c) {
        if (!finite_chunk(std::min(kChunk, n - c * kChunk), x + c * kChunk)) finite.store(false, std::memory_order_relaxed);
      }
    });
    if (!finite.load()) *result = 0;
  }
};

const ReduceKernels<float>* reduce_f32() {
  static const CpuReduce<float> kernels;
  return &kernels;
}
const ReduceKernels<double>* reduce_f64() {
  static const CpuReduce<double> kernels;
  return &kernels;
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(reduce_f32);
HWY_EXPORT(reduce_f64);

template <>
const ReduceKernels<float>& CpuBackend::reduce<float>() {
  return *HWY_DYNAMIC_DISPATCH(reduce_f32)();
}
template <>
const ReduceKernels<double>& CpuBackend::reduce<double>() {
  return *HWY_DYNAMIC_DISPATCH(reduce_f64)();
}

}  // namespace lamina::kernels
#endif
