// Functions of one variable and their derivatives, of a floating type.

#include "kernels/cpu/elementwise_float.h"

#include <cmath>
#include <cstdlib>

#include <lamina/core/parallel.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise_unary.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd_math.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

// Elements below which a range is not worth a thread.
constexpr int64_t kCheap = 65536, kCostly = 16384;

template <class T, class F>
void map(int64_t grain, int64_t n, const T* x, T* y, F f) {
  parallel_for(n, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
    for_each_vector<T>(end - begin, [&](auto at) HWY_ATTR { at.store(y + begin, f(at.load(x + begin))); });
  });
}

/// dx = f(saved, dy), `saved` being the input or the output.
template <class T, class F>
void map_gradient(int64_t grain, int64_t n, const T* saved, const T* dy, T* dx, F f) {
  parallel_for(n, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
    for_each_vector<T>(end - begin, [&](auto at) HWY_ATTR { at.store(dx + begin, f(at.load(saved + begin), at.load(dy + begin))); });
  });
}

template <class V>
HWY_INLINE V sign(V x) {  // NaN stays NaN, and so do zeros
  return hn::IfThenElse(hn::Gt(x, constant<V>(0)), constant<V>(1), hn::IfThenElse(hn::Lt(x, constant<V>(0)), constant<V>(-1), x));
}

template <class V>
HWY_INLINE V leaky(V x, V slope) {
  return hn::IfThenElse(hn::Le(x, constant<V>(0)), hn::Mul(slope, x), x);
}

/// x, but for the far ends where a factor that is 0 there must win over infinity.
template <class V>
HWY_INLINE V without_negative_infinity(V x) {
  return hn::IfThenElse(hn::Lt(x, constant<V>(-1e4)), constant<V>(0), x);
}
template <class V>
HWY_INLINE V within(V x, double bound) {
  return min_nan(max_nan(x, constant<V>(-bound)), constant<V>(bound));
}

constexpr double kRootTwoOverPi = 0.79788456080286535588, kCubic = 0.044715, kTwoOverRootPi = 1.12837916709551257390;

/// 2 sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh(u)) = sigmoid(2u) keeps the digits of the lower tail.
template <class V>
HWY_INLINE V gelu_argument(V x) {
  return hn::Mul(hn::Mul(constant<V>(2 * kRootTwoOverPi), x), hn::MulAdd(constant<V>(kCubic), hn::Mul(x, x), constant<V>(1)));
}

template <class V>
HWY_INLINE V gelu_gradient(V x) {
  const Two<V> normal = normal_distribution(x);
  return hn::MulAdd(within(x, 1e4), normal.first, normal.second);
}
template <class V>
HWY_INLINE V gelu_tanh_gradient(V x) {
  const V bounded = within(x, 1e4), s = sigmoid(gelu_argument(bounded));
  const V slope = hn::Mul(constant<V>(2 * kRootTwoOverPi), hn::MulAdd(constant<V>(3 * kCubic), hn::Mul(bounded, bounded), constant<V>(1)));
  return hn::MulAdd(hn::Mul(bounded, slope), hn::Mul(s, hn::Sub(constant<V>(1), s)), s);
}
template <class V>
HWY_INLINE V silu_gradient(V x) {
  const V bounded = within(x, 1e4), s = sigmoid(bounded);
  return hn::Mul(s, hn::MulAdd(bounded, hn::Sub(constant<V>(1), s), constant<V>(1)));
}

template <class T>
void power(int64_t n, const T* x, T* y, double p) {
  if (p == 2) return map(kCheap, n, x, y, [](auto v) HWY_ATTR { return hn::Mul(v, v); });
  if (p == 1) return map(kCheap, n, x, y, [](auto v) HWY_ATTR { return v; });
  const T exponent = static_cast<T>(p);
  map(kCostly / 4, n, x, y, [=](auto v) HWY_ATTR { return by_lane(v, [=](T lane) { return power_of(lane, exponent); }); });
}

template <class T>
void unary_on_target(Unary op, int64_t n, const T* x, T* y, double parameter) {
  using V = Vec<T>;
  const T p = static_cast<T>(parameter);
  const auto cheap = [&](auto f) { map(kCheap, n, x, y, f); };
  const auto costly = [&](auto f) { map(kCostly, n, x, y, f); };
  switch (op) {
    case Unary::neg: return cheap([](V v) HWY_ATTR { return hn::Neg(v); });
    case Unary::abs: return cheap([](V v) HWY_ATTR { return hn::Abs(v); });
    case Unary::exp: return costly([](V v) HWY_ATTR { return exp(v); });
    case Unary::log: return costly([](V v) HWY_ATTR { return log(v); });
    case Unary::sqrt: return cheap([](V v) HWY_ATTR { return hn::Sqrt(v); });
    case Unary::square: return cheap([](V v) HWY_ATTR { return hn::Mul(v, v); });
    case Unary::reciprocal: return cheap([](V v) HWY_ATTR { return hn::Div(constant<V>(1), v); });
    case Unary::relu: return cheap([](V v) HWY_ATTR { return max_nan(v, constant<V>(0)); });
    case Unary::leaky_relu: return cheap([p](V v) HWY_ATTR { return leaky(v, set(p)); });
    case Unary::tanh: return costly([](V v) HWY_ATTR { return tanh(v); });
    case Unary::sigmoid: return costly([](V v) HWY_ATTR { return sigmoid(v); });
    case Unary::gelu: return costly([](V v) HWY_ATTR { return hn::Mul(without_negative_infinity(v), normal_distribution(v).second); });
    case Unary::gelu_tanh: return costly([](V v) HWY_ATTR { return hn::Mul(without_negative_infinity(v), sigmoid(gelu_argument(v))); });
    case Unary::silu: return costly([](V v) HWY_ATTR { return hn::Mul(without_negative_infinity(v), sigmoid(v)); });
    case Unary::softplus: return costly([](V v) HWY_ATTR { return softplus(v); });
    case Unary::pow: return power(n, x, y, parameter);
    case Unary::add_scalar: return cheap([p](V v) HWY_ATTR { return hn::Add(v, set(p)); });
    case Unary::mul_scalar: return cheap([p](V v) HWY_ATTR { return hn::Mul(v, set(p)); });
    case Unary::rsub_scalar: return cheap([p](V v) HWY_ATTR { return hn::Sub(set(p), v); });
    case Unary::rdiv_scalar: return cheap([p](V v) HWY_ATTR { return hn::Div(set(p), v); });
    case Unary::clamp_min: return cheap([p](V v) HWY_ATTR { return max_nan(v, set(p)); });
    case Unary::clamp_max: return cheap([p](V v) HWY_ATTR { return min_nan(v, set(p)); });
    case Unary::sin: return costly([](V v) HWY_ATTR { return sin(v); });
    case Unary::cos: return costly([](V v) HWY_ATTR { return cos(v); });
    case Unary::erf: return costly([](V v) HWY_ATTR { return erf(v); });
    case Unary::log1p: return costly([](V v) HWY_ATTR { return log1p(v); });
    case Unary::expm1: return costly([](V v) HWY_ATTR { return expm1(v); });
    case Unary::sign: return cheap([](V v) HWY_ATTR { return sign(v); });
    case Unary::floor: return cheap([](V v) HWY_ATTR { return hn::Floor(v); });
  }
  std::abort();
}

template <class T>
void power_gradient(int64_t n, const T* x, const T* dy, T* dx, double p) {
  using V = Vec<T>;
  if (p == 0) return map(kCheap, n, dy, dx, [](V) HWY_ATTR { return constant<V>(0); });
  const T exponent = static_cast<T>(p - 1), factor = static_cast<T>(p);
  map_gradient(kCostly / 4, n, x, dy, dx, [=](V v, V dv) HWY_ATTR {
    const V slope = by_lane(v, [=](T lane) { return power_of(lane, exponent); });
    return hn::Mul(dv, hn::Mul(set(factor), slope));
  });
}

template <class T>
void unary_backward_on_target(Unary op, int64_t n, const T* x, const T* y, const T* dy, T* dx, double parameter) {
  using V = Vec<T>;
  const T p = static_cast<T>(parameter);
  const auto linear = [&](auto f) { map(kCheap, n, dy, dx, f); };
  const auto cheap = [&](const T* saved, auto f) { map_gradient(kCheap, n, saved, dy, dx, f); };
  const auto costly = [&](auto slope) {  // of the input
    map_gradient(kCostly, n, x, dy, dx, [slope](V v, V dv) HWY_ATTR { return hn::Mul(dv, slope(v)); });
  };
  switch (op) {
    case Unary::neg:
    case Unary::rsub_scalar: return linear([](V dv) HWY_ATTR { return hn::Neg(dv); });
    case Unary::add_scalar: return linear([](V dv) HWY_ATTR { return dv; });
    case Unary::mul_scalar: return linear([p](V dv) HWY_ATTR { return hn::Mul(dv, set(p)); });
    case Unary::sign:
    case Unary::floor: return linear([](V) HWY_ATTR { return constant<V>(0); });

    case Unary::exp: return cheap(y, [](V v, V dv) HWY_ATTR { return hn::Mul(dv, v); });
    case Unary::expm1: return cheap(y, [](V v, V dv) HWY_ATTR { return hn::Mul(dv, hn::Add(v, constant<V>(1))); });
    case Unary::sqrt:  // no gradient stays none where the slope is not finite, so that where(x > 0, sqrt(x), x) has one everywhere
      return cheap(y, [](V v, V dv) HWY_ATTR { return hn::IfThenZeroElse(hn::Eq(dv, constant<V>(0)), hn::Div(hn::Mul(constant<V>(0.5), dv), v)); });
    case Unary::reciprocal: return cheap(y, [](V v, V dv) HWY_ATTR { return hn::Neg(hn::Mul(dv, hn::Mul(v, v))); });
    case Unary::relu: return cheap(y, [](V v, V dv) HWY_ATTR { return hn::IfThenZeroElse(hn::Le(v, constant<V>(0)), dv); });
    case Unary::tanh: return cheap(y, [](V v, V dv) HWY_ATTR { return hn::Mul(dv, hn::NegMulAdd(v, v, constant<V>(1))); });
    case Unary::sigmoid: return cheap(y, [](V v, V dv) HWY_ATTR { return hn::Mul(dv, hn::Mul(v, hn::Sub(constant<V>(1), v))); });

    case Unary::abs: return cheap(x, [](V v, V dv) HWY_ATTR { return hn::Mul(dv, sign(v)); });
    case Unary::square: return cheap(x, [](V v, V dv) HWY_ATTR { return hn::Mul(dv, hn::Add(v, v)); });
    case Unary::log: return cheap(x, [](V v, V dv) HWY_ATTR { return hn::Div(dv, v); });
    case Unary::log1p: return cheap(x, [](V v, V dv) HWY_ATTR { return hn::Div(dv, hn::Add(constant<V>(1), v)); });
    case Unary::rdiv_scalar: return cheap(x, [p](V v, V dv) HWY_ATTR { return hn::Neg(hn::Mul(dv, hn::Div(hn::Div(set(p), v), v))); });
    case Unary::leaky_relu: return cheap(x, [p](V v, V dv) HWY_ATTR { return hn::IfThenElse(hn::Le(v, constant<V>(0)), hn::Mul(dv, set(p)), dv); });
    case Unary::clamp_min: return cheap(x, [p](V v, V dv) HWY_ATTR { return hn::IfThenElseZero(hn::Ge(v, set(p)), dv); });
    case Unary::clamp_max: return cheap(x, [p](V v, V dv) HWY_ATTR { return hn::IfThenElseZero(hn::Le(v, set(p)), dv); });

    case Unary::gelu: return costly([](V v) HWY_ATTR { return gelu_gradient(v); });
    case Unary::gelu_tanh: return costly([](V v) HWY_ATTR { return gelu_tanh_gradient(v); });
    case Unary::silu: return costly([](V v) HWY_ATTR { return silu_gradient(v); });
    case Unary::softplus: return costly([](V v) HWY_ATTR { return sigmoid(v); });
    case Unary::sin: return costly([](V v) HWY_ATTR { return cos(v); });
    case Unary::cos: return costly([](V v) HWY_ATTR { return hn::Neg(sin(v)); });
    case Unary::erf: return costly([](V v) HWY_ATTR { return hn::Mul(constant<V>(kTwoOverRootPi), exp_minus_square(within(v, 1e4), 1)); });
    case Unary::pow: return power_gradient(n, x, dy, dx, parameter);
  }
  std::abort();
}

void unary_f32(Unary op, int64_t n, const float* x, float* y, double p) { unary_on_target(op, n, x, y, p); }
void unary_f64(Unary op, int64_t n, const double* x, double* y, double p) { unary_on_target(op, n, x, y, p); }
void unary_backward_f32(Unary op, int64_t n, const float* x, const float* y, const float* dy, float* dx, double p) {
  unary_backward_on_target(op, n, x, y, dy, dx, p);
}
void unary_backward_f64(Unary op, int64_t n, const double* x, const double* y, const double* dy, double* dx, double p) {
  unary_backward_on_target(op, n, x, y, dy, dx, p);
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {

HWY_EXPORT(unary_f32);
HWY_EXPORT(unary_f64);
HWY_EXPORT(unary_backward_f32);
HWY_EXPORT(unary_backward_f64);

namespace cpu {

template <>
void unary(Unary op, int64_t n, const float* x, float* y, double p) {
  HWY_DYNAMIC_DISPATCH(unary_f32)(op, n, x, y, p);
}
template <>
void unary(Unary op, int64_t n, const double* x, double* y, double p) {
  HWY_DYNAMIC_DISPATCH(unary_f64)(op, n, x, y, p);
}
template <>
void unary_backward(Unary op, int64_t n, const float* x, const float* y, const float* dy, float* dx, double p) {
  HWY_DYNAMIC_DISPATCH(unary_backward_f32)(op, n, x, y, dy, dx, p);
}
template <>
void unary_backward(Unary op, int64_t n, const double* x, const double* y, const double* dy, double* dx, double p) {
  HWY_DYNAMIC_DISPATCH(unary_backward_f64)(op, n, x, y, dy, dx, p);
}

}  // namespace cpu
}  // namespace lamina::kernels
#endif
