// Two operands of a floating type, with broadcasting.

#include <array>
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/elementwise_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise_binary.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd_math.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

using cpu::Step;

constexpr int64_t kGrain = 65536;  // elements below which a range is not worth a thread

/// The operand's vector at `at`.
template <Step step, class T, class At>
HWY_INLINE Vec<T> fetch(At at, const T* p, int64_t stride) {
  if constexpr (step == Step::one) return at.load(p);
  if constexpr (step == Step::none) return set(p[0]);
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)] = {};
  int64_t count = lanes<T>();
  if constexpr (std::is_same_v<At, PartialVector<T>>) count = at.count;
  for (int64_t i = 0; i < count; ++i) buffer[i] = p[(at.index + i) * stride];
  return hn::Load(Tag<T>(), buffer);
}

/// z = f(a, b) on vectors.
template <class T, class F>
void combine(const Broadcast& space, int64_t grain, const T* a, const T* b, T* z, F f) {
  const int64_t sa = cpu::inner_axis(space).strides[0], sb = cpu::inner_axis(space).strides[1];
  cpu::with_steps(sa, sb, [&]<Step step_a, Step step_b>() HWY_ATTR {
    cpu::for_each_run(space, grain, [&](int64_t first, int64_t count, const std::array<int64_t, 3>& offsets) HWY_ATTR {
      const T *pa = a + offsets[0], *pb = b + offsets[1];
      for_each_vector<T>(count, [&](auto at) HWY_ATTR { at.store(z + first, f(fetch<step_a>(at, pa, sa), fetch<step_b>(at, pb, sb))); });
    });
  });
}

template <class V>
HWY_INLINE V power(V a, V b) {
  using T = Lane<V>;
  const hn::DFromV<V> d;
  HWY_ALIGN T base[HWY_MAX_BYTES / sizeof(T)], exponent[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(a, d, base);
  hn::Store(b, d, exponent);
  for (size_t i = 0; i < hn::Lanes(d); ++i) base[i] = power_of(base[i], exponent[i]);
  return hn::Load(d, base);
}

template <class T>
void binary_on_target(Binary op, const Broadcast& space, const T* a, const T* b, T* z) {
  using V = Vec<T>;
  const auto apply = [&](auto f) { combine(space, kGrain, a, b, z, f); };
  switch (op) {
    case Binary::add: return apply([](V v, V w) HWY_ATTR { return hn::Add(v, w); });
    case Binary::sub: return apply([](V v, V w) HWY_ATTR { return hn::Sub(v, w); });
    case Binary::mul: return apply([](V v, V w) HWY_ATTR { return hn::Mul(v, w); });
    case Binary::div: return apply([](V v, V w) HWY_ATTR { return hn::Div(v, w); });
    case Binary::max: return apply([](V v, V w) HWY_ATTR { return max_nan(v, w); });
    case Binary::min: return apply([](V v, V w) HWY_ATTR { return min_nan(v, w); });
    case Binary::pow: return combine(space, kGrain / 16, a, b, z, [](V v, V w) HWY_ATTR { return power(v, w); });
  }
  std::abort();
}

template <class T>
void accumulate_on_target(int64_t n, const T* x, T* y) {
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) HWY_ATTR {
    for_each_vector<T>(end - begin, [&](auto at) HWY_ATTR { at.store(y + begin, hn::Add(at.load(y + begin), at.load(x + begin))); });
  });
}

void binary_f32(Binary op, const Broadcast& space, const float* a, const float* b, float* z) { binary_on_target(op, space, a, b, z); }
void binary_f64(Binary op, const Broadcast& space, const double* a, const double* b, double* z) { binary_on_target(op, space, a, b, z); }
void accumulate_f32(int64_t n, const float* x, float* y) { accumulate_on_target(n, x, y); }
void accumulate_f64(int64_t n, const double* x, double* y) { accumulate_on_target(n, x, y); }

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(binary_f32);
HWY_EXPORT(binary_f64);
HWY_EXPORT(accumulate_f32);
HWY_EXPORT(accumulate_f64);

namespace cpu {

template <>
void binary(Binary op, const Broadcast& space, const float* a, const float* b, float* z) {
  HWY_DYNAMIC_DISPATCH(binary_f32)(op, space, a, b, z);
}
template <>
void binary(Binary op, const Broadcast& space, const double* a, const double* b, double* z) {
  HWY_DYNAMIC_DISPATCH(binary_f64)(op, space, a, b, z);
}
template <>
void accumulate(int64_t n, const float* x, float* y) {
  HWY_DYNAMIC_DISPATCH(accumulate_f32)(n, x, y);
}
template <>
void accumulate(int64_t n, const double* x, double* y) {
  HWY_DYNAMIC_DISPATCH(accumulate_f64)(n, x, y);
}

}  // namespace cpu
}  // namespace lamina::kernels
#endif
