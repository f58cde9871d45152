// Operations on two operands with broadcasting, comparison, selection; the functions of one variable are in elementwise_unary.cpp.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/elementwise_unary.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd_math.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

constexpr int64_t kGrain = 65536;
template <class T>
constexpr bool kFloating = std::is_floating_point_v<T>;

// How an operand moves along a run: known to the compiler for the first two.
enum class Step { one, none, other };
inline Step step_of(int64_t stride) { return stride == 1 ? Step::one : stride == 0 ? Step::none : Step::other; }

template <Step step>
HWY_INLINE int64_t at_step(int64_t i, int64_t stride) {
  return step == Step::one ? i : step == Step::none ? 0 : i * stride;
}

/// Calls f with the steps of two operands as template arguments.
template <class F>
HWY_INLINE void with_steps(int64_t stride_a, int64_t stride_b, F&& f) {
  const Step a = step_of(stride_a), b = step_of(stride_b);
  if (a == Step::one && b == Step::one) return f.template operator()<Step::one, Step::one>();
  if (a == Step::one && b == Step::none) return f.template operator()<Step::one, Step::none>();
  if (a == Step::none && b == Step::one) return f.template operator()<Step::none, Step::one>();
  f.template operator()<Step::other, Step::other>();
}

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

/// z = f(a, b): f takes vectors for floating types, elements for integers.
template <class T, class F>
void combine(const Broadcast& space, int64_t grain, const T* a, const T* b, T* z, F f) {
  const int64_t sa = cpu::inner_axis(space).strides[0], sb = cpu::inner_axis(space).strides[1];
  with_steps(sa, sb, [&]<Step step_a, Step step_b>() HWY_ATTR {
    cpu::for_each_run(space, grain, [&](int64_t first, int64_t count, const std::array<int64_t, 3>& offsets) HWY_ATTR {
      const T *pa = a + offsets[0], *pb = b + offsets[1];
      T* target = z + first;
      if constexpr (kFloating<T>) {
        for_each_vector<T>(count, [&](auto at) HWY_ATTR { at.store(target, f(fetch<step_a>(at, pa, sa), fetch<step_b>(at, pb, sb))); });
      } else {
        for (int64_t i = 0; i < count; ++i) target[i] = f(pa[at_step<step_a>(i, sa)], pb[at_step<step_b>(i, sb)]);
      }
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
  for (size_t i = 0; i < hn::Lanes(d); ++i) base[i] = std::pow(base[i], exponent[i]);
  return hn::Load(d, base);
}

/// Integer arithmetic wraps around.
template <class T, class F>
HWY_INLINE T wrapped(T a, T b, F f) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<U>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b))));
}

template <class T>
void binary_floating(Binary op, const Broadcast& space, const T* a, const T* b, T* z) {
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
void binary_integer(Binary op, const Broadcast& space, const T* a, const T* b, T* z) {
  const auto apply = [&](auto f) { combine(space, kGrain, a, b, z, f); };
  switch (op) {
    case Binary::add: return apply([](T v, T w) { return wrapped(v, w, [](uint64_t p, uint64_t q) { return p + q; }); });
    case Binary::sub: return apply([](T v, T w) { return wrapped(v, w, [](uint64_t p, uint64_t q) { return p - q; }); });
    case Binary::mul: return apply([](T v, T w) { return wrapped(v, w, [](uint64_t p, uint64_t q) { return p * q; }); });
    case Binary::max: return apply([](T v, T w) { return std::max(v, w); });
    case Binary::min: return apply([](T v, T w) { return std::min(v, w); });
    default: std::abort();
  }
}

template <class T>
void unary_integer(Unary op, int64_t n, const T* x, T* y, double p) {
  const T parameter = static_cast<T>(p);
  for (int64_t i = 0; i < n; ++i) {
    const T v = x[i];
    switch (op) {
      case Unary::neg: y[i] = wrapped(T(0), v, [](uint64_t a, uint64_t b) { return a - b; }); break;
      case Unary::abs: y[i] = v < T(0) ? wrapped(T(0), v, [](uint64_t a, uint64_t b) { return a - b; }) : v; break;
      case Unary::add_scalar: y[i] = wrapped(v, parameter, [](uint64_t a, uint64_t b) { return a + b; }); break;
      case Unary::mul_scalar: y[i] = wrapped(v, parameter, [](uint64_t a, uint64_t b) { return a * b; }); break;
      default: std::abort();
    }
  }
}

template <class T, class F>
void compare_all(const Broadcast& space, const T* a, const T* b, uint8_t* z, F f) {
  const int64_t sa = cpu::inner_axis(space).strides[0], sb = cpu::inner_axis(space).strides[1];
  with_steps(sa, sb, [&]<Step step_a, Step step_b>() HWY_ATTR {
    cpu::for_each_run(space, kGrain, [&](int64_t first, int64_t count, const std::array<int64_t, 3>& offsets) HWY_ATTR {
      const T *pa = a + offsets[0], *pb = b + offsets[1];
      for (int64_t i = 0; i < count; ++i) z[first + i] = f(pa[at_step<step_a>(i, sa)], pb[at_step<step_b>(i, sb)]);
    });
  });
}

template <class T>
struct CpuElementwise final : ElementwiseKernels<T> {
  void unary(Unary op, int64_t n, const T* x, T* y, double p) const override {
    if constexpr (kFloating<T>) {
      cpu::unary(op, n, x, y, p);
    } else {
      unary_integer(op, n, x, y, p);
    }
  }

  void unary_backward(Unary op, int64_t n, const T* x, const T* y, const T* dy, T* dx, double p) const override {
    if constexpr (kFloating<T>) {
      cpu::unary_backward(op, n, x, y, dy, dx, p);
    } else {
      std::abort();
    }
  }

  void binary(Binary op, const Broadcast& space, const T* a, const T* b, T* z) const override {
    if constexpr (kFloating<T>) {
      binary_floating(op, space, a, b, z);
    } else {
      binary_integer(op, space, a, b, z);
    }
  }

  void compare(Compare op, const Broadcast& space, const T* a, const T* b, uint8_t* z) const override {
    const auto apply = [&](auto f) { compare_all(space, a, b, z, f); };
    switch (op) {
      case Compare::eq: return apply([](T v, T w) { return v == w; });
      case Compare::ne: return apply([](T v, T w) { return v != w; });
      case Compare::lt: return apply([](T v, T w) { return v < w; });
      case Compare::le: return apply([](T v, T w) { return v <= w; });
      case Compare::gt: return apply([](T v, T w) { return v > w; });
      case Compare::ge: return apply([](T v, T w) { return v >= w; });
    }
    std::abort();
  }

  void where(const Broadcast& space, const uint8_t* mask, const T* a, const T* b, T* z) const override {
    const cpu::InnerAxis inner = cpu::inner_axis(space);
    const int64_t sm = inner.strides[0], sa = inner.strides[1], sb = inner.strides[2];
    with_steps(sa, sb, [&]<Step step_a, Step step_b>() HWY_ATTR {
      cpu::for_each_run(space, kGrain, [&](int64_t first, int64_t count, const std::array<int64_t, 3>& offsets) HWY_ATTR {
        const uint8_t* pm = mask + offsets[0];
        const T *pa = a + offsets[1], *pb = b + offsets[2];
        T* target = z + first;
        if (sm == 1) {
          for (int64_t i = 0; i < count; ++i) target[i] = pm[i] ? pa[at_step<step_a>(i, sa)] : pb[at_step<step_b>(i, sb)];
        } else {
          for (int64_t i = 0; i < count; ++i) target[i] = pm[i * sm] ? pa[at_step<step_a>(i, sa)] : pb[at_step<step_b>(i, sb)];
        }
      });
    });
  }

  void accumulate(int64_t n, const T* x, T* y) const override {
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) HWY_ATTR {
      if constexpr (kFloating<T>) {
        for_each_vector<T>(end - begin, [&](auto at) HWY_ATTR { at.store(y + begin, hn::Add(at.load(y + begin), at.load(x + begin))); });
      } else {
        for (int64_t i = begin; i < end; ++i) y[i] = wrapped(y[i], x[i], [](uint64_t p, uint64_t q) { return p + q; });
      }
    });
  }
};

template <class T>
const ElementwiseKernels<T>* instance() {
  static const CpuElementwise<T> kernels;
  return &kernels;
}
const ElementwiseKernels<float>* elementwise_f32() { return instance<float>(); }
const ElementwiseKernels<double>* elementwise_f64() { return instance<double>(); }
const ElementwiseKernels<int64_t>* elementwise_i64() { return instance<int64_t>(); }
const ElementwiseKernels<uint8_t>* elementwise_u8() { return instance<uint8_t>(); }

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(elementwise_f32);
HWY_EXPORT(elementwise_f64);
HWY_EXPORT(elementwise_i64);
HWY_EXPORT(elementwise_u8);

template <>
const ElementwiseKernels<float>& CpuBackend::elementwise<float>() {
  return *HWY_DYNAMIC_DISPATCH(elementwise_f32)();
}
template <>
const ElementwiseKernels<double>& CpuBackend::elementwise<double>() {
  return *HWY_DYNAMIC_DISPATCH(elementwise_f64)();
}
template <>
const ElementwiseKernels<int64_t>& CpuBackend::elementwise<int64_t>() {
  return *HWY_DYNAMIC_DISPATCH(elementwise_i64)();
}
template <>
const ElementwiseKernels<uint8_t>& CpuBackend::elementwise<uint8_t>() {
  return *HWY_DYNAMIC_DISPATCH(elementwise_u8)();
}

}  // namespace lamina::kernels
#endif
