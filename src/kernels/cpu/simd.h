// A thin layer over Highway, so that a kernel reads as a short lambda over vectors. A dispatched file looks like this:
//
//   #include "kernels/kernels.h"                                      // and everything else that is not SIMD
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "kernels/cpu/scale.cpp"                // itself: Highway compiles it once per instruction set
//   #include <hwy/foreach_target.h>
//   #include "kernels/cpu/simd.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace lamina::kernels::HWY_NAMESPACE {
//   template <class T> struct CpuScale final : ScaleKernels<T> {
//     void scale(int64_t n, T factor, const T* x, T* y) const override {
//       const auto f = set(factor);
//       for_each_vector<T>(n, [&](auto at) HWY_ATTR { at.store(y, hn::Mul(at.load(x), f)); });
//     }
//   };
//   const ScaleKernels<float>* scale_f32() { static const CpuScale<float> k; return &k; }
//   }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace lamina::kernels {
//   HWY_EXPORT(scale_f32);
//   template <> const ScaleKernels<float>& CpuBackend::scale<float>() { return *HWY_DYNAMIC_DISPATCH(scale_f32)(); }
//   }
//   #endif
//
// Every lambda that touches vectors carries HWY_ATTR (the instruction set reaches lambdas in no other way under clang), and helpers that take or
// return vectors are templates or inline functions inside the target's namespace. Nothing reads or writes past an array's end: the last, partial
// vector is loaded with zeros behind it. A lane's result does not depend on where a range was cut.

#if defined(LAMINA_KERNELS_CPU_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_SIMD_H
#undef LAMINA_KERNELS_CPU_SIMD_H
#else
#define LAMINA_KERNELS_CPU_SIMD_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <numeric>

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

template <class T>
HWY_INLINE int64_t lanes() {
  return static_cast<int64_t>(hn::Lanes(Tag<T>()));
}
template <class T>
HWY_INLINE Vec<T> set(T value) {
  return hn::Set(Tag<T>(), value);
}
template <class T>
HWY_INLINE Vec<T> zero() {
  return hn::Zero(Tag<T>());
}
template <class T>
HWY_INLINE Vec<T> load(const T* p) {
  return hn::LoadU(Tag<T>(), p);
}
template <class T>
HWY_INLINE void store(Vec<T> v, T* p) {
  hn::StoreU(v, Tag<T>(), p);
}

/// The first `count` < lanes elements, zeros behind them; memory beyond is not read.
template <class T>
HWY_INLINE Vec<T> load_first(const T* p, int64_t count) {
  const Tag<T> d;
#if HWY_TARGET <= HWY_AVX2  // has masked loads that do not fault
  if constexpr (sizeof(T) >= 4) return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, p);
#endif
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(T));
  return hn::Load(d, buffer);
}

template <class T>
HWY_INLINE void store_first(Vec<T> v, T* p, int64_t count) {
  const Tag<T> d;
#if HWY_TARGET <= HWY_AVX2
  if constexpr (sizeof(T) >= 4) return hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(count)), d, p);
#endif
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(T));
}

/// A full vector at element `index` of arrays that are walked together.
template <class T>
struct WholeVector {
  int64_t index;
  HWY_INLINE Vec<T> load(const T* p) const { return HWY_NAMESPACE::load(p + index); }
  HWY_INLINE void store(T* p, Vec<T> v) const { HWY_NAMESPACE::store(v, p + index); }
  /// What is not read again soon. Past the caches where a walk says so.
  HWY_INLINE void store_result(T* p, Vec<T> v) const { store(p, v); }
  HWY_INLINE Vec<T> keep(Vec<T> v) const { return v; }
  HWY_INLINE Vec<T> keep_or(Vec<T> v, Vec<T>) const { return v; }
};

/// The same, whose results go to memory past the caches: p + index is aligned for it.
template <class T>
struct StreamedVector : WholeVector<T> {
  explicit StreamedVector(int64_t i) : WholeVector<T>{i} {}
  HWY_INLINE void store_result(T* p, Vec<T> v) const { hn::Stream(v, Tag<T>(), p + this->index); }
};

/// The first or last, partial one: `count` lanes are real.
template <class T>
struct PartialVector {
  int64_t index;
  int64_t count;
  HWY_INLINE Vec<T> load(const T* p) const { return load_first(p + index, count); }
  HWY_INLINE void store(T* p, Vec<T> v) const { store_first(v, p + index, count); }
  HWY_INLINE void store_result(T* p, Vec<T> v) const { store(p, v); }
  /// v with zeros (or `other`) in the lanes that are not real: for terms of a reduction.
  HWY_INLINE Vec<T> keep(Vec<T> v) const { return hn::IfThenElseZero(hn::FirstN(Tag<T>(), static_cast<size_t>(count)), v); }
  HWY_INLINE Vec<T> keep_or(Vec<T> v, Vec<T> other) const { return hn::IfThenElse(hn::FirstN(Tag<T>(), static_cast<size_t>(count)), v, other); }
};

/// Calls f(at) for the vectors that cover [0, n): at.load(x) and at.store(y, v) access x and y at the same elements. The first is a partial one of
/// `head` elements (0: none), after which whole ones begin. Less than a vector is one partial one.
template <class T, template <class> class Whole = WholeVector, class F>
HWY_INLINE void for_each_vector_after(int64_t head, int64_t n, F&& f) {
  const int64_t step = lanes<T>();
  int64_t i = n < step ? 0 : head < n ? head : n;
  if (i > 0) f(PartialVector<T>{0, i});
  for (; i + step <= n; i += step) f(Whole<T>{i});
  if (i < n) f(PartialVector<T>{i, n - i});
}
template <class T, class F>
HWY_INLINE void for_each_vector(int64_t n, F&& f) {
  for_each_vector_after<T>(0, n, f);
}

/// How many elements lie between element `offset` of an aligned array and its next aligned vector.
template <class T>
HWY_INLINE int64_t to_aligned(int64_t offset) {
  return -offset & (lanes<T>() - 1);
}

/// Rows of `width` elements begin equally far from an aligned vector if their numbers differ by a multiple of this.
template <class T>
int64_t row_period(int64_t width) {
  return lanes<T>() / std::gcd(width, lanes<T>());
}

/// The sum of all lanes. (In an order that depends on the vector length only.)
template <class T>
HWY_INLINE T sum_lanes(Vec<T> v) {
  return hn::GetLane(hn::SumOfLanes(Tag<T>(), v));
}

/// The sum of f(at) over [0, n), f's partial vectors may hold anything beyond `count`. Four accumulators hide the latency of the additions.
template <class T, class F>
HWY_INLINE T sum(int64_t n, F&& f) {
  const int64_t step = lanes<T>();
  Vec<T> a = zero<T>(), b = zero<T>(), c = zero<T>(), d = zero<T>();
  int64_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    a = hn::Add(a, f(WholeVector<T>{i}));
    b = hn::Add(b, f(WholeVector<T>{i + step}));
    c = hn::Add(c, f(WholeVector<T>{i + 2 * step}));
    d = hn::Add(d, f(WholeVector<T>{i + 3 * step}));
  }
  for (; i + step <= n; i += step) a = hn::Add(a, f(WholeVector<T>{i}));
  if (i < n) {
    const PartialVector<T> at{i, n - i};
    b = hn::Add(b, at.keep(f(at)));
  }
  return sum_lanes<T>(hn::Add(hn::Add(a, b), hn::Add(c, d)));
}

template <class V>
struct Two {
  V first, second;
};

/// max and min that hand on NaN (the instructions' own rules differ between targets).
template <class V>
HWY_INLINE V max_nan(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Gt(a, b)), a, b);
}
template <class V>
HWY_INLINE V min_nan(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Lt(a, b)), a, b);
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_SIMD_H
