// Elementary functions on vectors: Highway's, made right at infinities, NaN and the ends of their ranges, and the few it lacks. Use as simd.h.

#if defined(LAMINA_KERNELS_CPU_SIMD_MATH_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_SIMD_MATH_H
#undef LAMINA_KERNELS_CPU_SIMD_MATH_H
#else
#define LAMINA_KERNELS_CPU_SIMD_MATH_H
#endif

#include <hwy/contrib/math/math-inl.h>

#include <cmath>
#include <iterator>
#include <limits>

#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

template <class V>
using Lane = hn::TFromV<V>;
template <class V>
HWY_INLINE V constant(double value) {
  return hn::Set(hn::DFromV<V>(), static_cast<Lane<V>>(value));
}

/// f on each lane, for functions that have no vector form.
template <class V, class F>
HWY_INLINE V by_lane(V v, F&& f) {
  const hn::DFromV<V> d;
  HWY_ALIGN Lane<V> buffer[HWY_MAX_BYTES / sizeof(Lane<V>)];
  hn::Store(v, d, buffer);
  for (size_t i = 0; i < hn::Lanes(d); ++i) buffer[i] = f(buffer[i]);
  return hn::Load(d, buffer);
}

/// Whether |x| <= limit in every lane (false with NaN).
template <class V>
HWY_INLINE bool all_within(V x, double limit) {
  return hn::AllTrue(hn::DFromV<V>(), hn::Le(hn::Abs(x), constant<V>(limit)));
}

template <class V>
HWY_INLINE V exp(V x) {
  // Above the bound the result is infinite; Highway's own range ends there. NaN is lost in its underflow test.
  const V bounded = hn::Min(x, constant<V>(sizeof(Lane<V>) == 4 ? 104.0 : 709.8));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(hn::DFromV<V>(), bounded));
}

template <class V>
HWY_INLINE V expm1(V x) {
  const V bounded = hn::Min(x, constant<V>(sizeof(Lane<V>) == 4 ? 104.0 : 709.8));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Expm1(hn::DFromV<V>(), bounded));
}

/// What log and log1p share: `at_pole` is x or 1 + x.
template <class V>
HWY_INLINE V logarithm_limits(V x, V at_pole, V result) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  result = hn::IfThenElse(hn::Lt(x, constant<V>(infinity)), result, x);  // infinity and NaN
  result = hn::IfThenElse(hn::Eq(at_pole, hn::Zero(hn::DFromV<V>())), constant<V>(-infinity), result);
  return hn::IfThenElse(hn::Lt(at_pole, hn::Zero(hn::DFromV<V>())), constant<V>(std::numeric_limits<double>::quiet_NaN()), result);
}
template <class V>
HWY_INLINE V log(V x) {
  return logarithm_limits(x, x, hn::Log(hn::DFromV<V>(), x));
}
template <class V>
HWY_INLINE V log1p(V x) {
  return logarithm_limits(x, hn::Add(constant<V>(1), x), hn::Log1p(hn::DFromV<V>(), x));
}

// ---- tanh and the logistic function, to 2.5 units in the last place over the whole line ----
// e^t = 2^n (1 + p) with t = n ln 2 + r, |r| <= ln(2)/2, and p = e^r - 1 = r + r^2 Q(r). Q interpolates (e^r - 1 - r) / r^2 at Chebyshev nodes
// (relative error of p 2.4e-8 for float, 5.4e-19 for double); ln 2 comes in two parts, the first with so few digits that its products with n are
// exact. Signs and powers of two are in the constants, and the bounds let NaN pass: a recurrent layer spends much of its time here.

template <class T>
struct ExpTable;
template <>
struct ExpTable<float> {
  static constexpr int kDigits = 23;
  static constexpr float kRound = 12582912.0f + 127;  // 1.5 2^23: adding it leaves the nearest whole number in the last digits, with 2^n's bias
  static constexpr double kLn2High = 0.693359375, kLn2Low = -2.12194440054690583e-4;
  static constexpr double kLargest = 88, kTanhIsOne = 9.1;
  static constexpr float kRest[] = {0.5f, 0.166665764f, 0.0416665538f, 0.00836328122f, 0.00139263112f};
};
template <>
struct ExpTable<double> {
  static constexpr int kDigits = 52;
  static constexpr double kRound = 6755399441055744.0 + 1023;
  static constexpr double kLn2High = 0.693147180369123816490, kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kLargest = 709, kTanhIsOne = 19.1;
  static constexpr double kRest[] = {0.5,
                                     0.16666666666666671,
                                     0.041666666666666671,
                                     0.0083333333333260369,
                                     0.0013888888888883677,
                                     0.00019841269875165948,
                                     2.4801587325794338e-5,
                                     2.7557254962941825e-6,
                                     2.755727333085602e-7,
                                     2.5105398682936387e-8,
                                     2.091481670571617e-9};
};

/// The coefficients of 2 Q(2 r).
template <class T, size_t n = std::size(ExpTable<T>::kRest)>
struct TwiceTheRest {
  constexpr TwiceTheRest() {
    T factor = 2;
    for (size_t i = 0; i < n; ++i, factor *= 2) values[i] = factor * ExpTable<T>::kRest[i];
  }
  T values[n] = {};
};

template <class V, size_t n>
HWY_INLINE V polynomial(V x, const Lane<V> (&coefficients)[n]) {
  const hn::DFromV<V> d;
  V y = hn::Set(d, coefficients[n - 1]);
  for (size_t i = n - 1; i-- > 0;) y = hn::MulAdd(y, x, hn::Set(d, coefficients[i]));
  return y;
}

/// v, but no more (no less) than the bound; NaN stays. (Of two operands of which one is NaN, x86's instructions give the second.)
template <class V>
HWY_INLINE V at_most(V v, double bound) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Min(constant<V>(bound), v);
#else
  return hn::IfThenElse(hn::Lt(constant<V>(bound), v), constant<V>(bound), v);
#endif
}
template <class V>
HWY_INLINE V at_least(V v, double bound) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(constant<V>(bound), v);
#else
  return hn::IfThenElse(hn::Lt(v, constant<V>(bound)), constant<V>(bound), v);
#endif
}

/// n, the whole number nearest t scale, as the first, and 2^n.
template <class V>
HWY_INLINE Two<V> whole_part(V t, double scale) {
  using Table = ExpTable<Lane<V>>;
  const hn::RebindToSigned<hn::DFromV<V>> whole;
  const V rounded = hn::MulAdd(t, constant<V>(scale), constant<V>(Table::kRound));
  return {hn::Sub(rounded, constant<V>(Table::kRound)), hn::BitCast(hn::DFromV<V>(), hn::ShiftLeft<Table::kDigits>(hn::BitCast(whole, rounded)))};
}
inline constexpr double kInverseLn2 = 1.44269504088896340736;

/// With m = e^(-2|x|) - 1, exact to its last digits also near 0: tanh |x| = -m / (2 + m). Here r, p and m are the halves of these.
template <class V>
HWY_INLINE V tanh(V x) {
  using Table = ExpTable<Lane<V>>;
  static constexpr TwiceTheRest<Lane<V>> rest;
  const V t = at_least(hn::Or(x, hn::SignBit(hn::DFromV<V>())), -Table::kTanhIsOne);
  const Two<V> n = whole_part(t, 2 * kInverseLn2);
  const V r = hn::NegMulAdd(n.first, constant<V>(Table::kLn2Low / 2), hn::NegMulAdd(n.first, constant<V>(Table::kLn2High / 2), t));
  const V p = hn::MulAdd(hn::Mul(r, r), polynomial(r, rest.values), r);
  const V m = hn::MulAdd(n.second, p, hn::MulSub(n.second, constant<V>(0.5), constant<V>(0.5)));
  return hn::CopySign(hn::Div(m, hn::Add(m, constant<V>(1))), x);
}

/// 1 / (1 + e^-x); below -kLargest the result counts as 0, as all denormals do.
template <class V>
HWY_INLINE V sigmoid(V x) {
  using Table = ExpTable<Lane<V>>;
  const V t = at_most(at_least(x, -Table::kLargest), Table::kLargest);
  const Two<V> n = whole_part(t, -kInverseLn2);
  const V r = hn::NegMulAdd(n.first, constant<V>(Table::kLn2Low), hn::NegMulSub(n.first, constant<V>(Table::kLn2High), t));
  const V p = hn::MulAdd(hn::Mul(r, r), polynomial(r, Table::kRest), r);
  return hn::Div(constant<V>(1), hn::Add(constant<V>(1), hn::MulAdd(n.second, p, n.second)));
}

/// log(1 + e^x) = max(x, 0) + log1p(e^-|x|).
template <class V>
HWY_INLINE V softplus(V x) {
  return hn::Add(max_nan(x, constant<V>(0)), hn::Log1p(hn::DFromV<V>(), exp(hn::Neg(hn::Abs(x)))));
}

/// `near`, but f of each lane beyond the limit. (Chosen lane by lane: a result must not depend on its neighbours, which change with the threads.)
template <class V, class F>
HWY_INLINE V or_beyond(V x, double limit, V near, F&& f) {
  if (all_within(x, limit)) return near;
  return hn::IfThenElse(hn::Le(hn::Abs(x), constant<V>(limit)), near, by_lane(x, f));
}

// Highway's argument reduction holds up to 39000.
template <class V>
HWY_INLINE V sin(V x) {
  return or_beyond(x, 30000, hn::Sin(hn::DFromV<V>(), x), [](Lane<V> v) { return std::sin(v); });
}
template <class V>
HWY_INLINE V cos(V x) {
  return or_beyond(x, 30000, hn::Cos(hn::DFromV<V>(), x), [](Lane<V> v) { return std::cos(v); });
}

/// base^exponent of one lane. A denormal base counts as 0, as everywhere in kernels: where the processor flushes them, std::pow's own way around
/// denormals ends at numbers that have nothing to do with the result.
template <class T>
T power_of(T base, T exponent) {
  return std::pow(std::abs(base) < std::numeric_limits<T>::min() ? std::copysign(T(0), base) : base, exponent);
}

// ---- erf and its relatives, in one accuracy over the whole line ----
// For |t| <= 1, erf(t) = t P(t^2). Beyond, erfc(t) = e^(-t^2) u Q(u) with u = 1 / (t + 2). P and Q interpolate at Chebyshev nodes (relative
// errors 1.3e-9 and 3.8e-9 for float, 1.5e-19 and 8e-19 for double); the square's rounding error is put back, so that small tails keep their digits.

template <class T>
struct ErfTable;
template <>
struct ErfTable<float> {
  static constexpr double kLimit = 10.2;  // e^(-t^2) is 0 beyond
  static constexpr float kSmall[] = {1.12837917f, -0.376126267f, 0.112835947f, -0.026854212f, 0.00518908742f, -0.000801686429f, 7.87587506e-05f};
  static constexpr float kTail[] = {0.564169931f, 1.12942831f,  1.95073066f, 3.12581098f, 0.312013152f,
                                    11.0920965f,  -38.9853057f, 24.1710915f, 25.4851774f, -26.9885252f};
};
template <>
struct ErfTable<double> {
  static constexpr double kLimit = 27.3;
  static constexpr double kSmall[] = {1.12837916709551257,    -0.376126389031837481,    0.112837916709548787,    -0.0268661706450767932,
                                      0.00522397762481801447, -0.000854832698083378991, 0.000120553311116427109, -0.0000149255952668311816,
                                      1.6461000484121368e-6,  -1.6350312701054695e-7,   1.46597752740474358e-8,  -1.13728488567916737e-9,
                                      5.9571761477489114e-11};
  static constexpr double kTail[] = {0.564189583549239965,  1.12837916681902685,  1.97466356576950951,  2.82094673362667539,   2.6799407085537351,
                                     -0.283055163284493839, -7.24750513866165559, -13.8786558656301715, -0.479678373187347983, 49.0904055255344437,
                                     -8.0630036908971667,   1850.45774044480561,  -18165.1917351985695, 114704.921649200074,   -573984.8855689113,
                                     2185954.42255809841,   -6154861.28063695818, 12731213.253522722,   -19206211.7067286779,  20675052.7098718993,
                                     -15118480.7309677093,  6755780.25591493973,  -1396586.19096484164};
};

/// x^2 = first + second, exactly but for underflow.
template <class V>
HWY_INLINE Two<V> exact_square(V x) {
  const V square = hn::Mul(x, x);
#if HWY_NATIVE_FMA
  return {square, hn::MulSub(x, x, square)};
#else  // Dekker 1971: the halves of x have exact products
  const V shifted = hn::Mul(x, constant<V>(sizeof(Lane<V>) == 4 ? 4097.0 : 134217729.0));
  const V high = hn::Sub(shifted, hn::Sub(shifted, x)), low = hn::Sub(x, high), cross = hn::Mul(high, low);
  return {square, hn::Add(hn::Add(hn::Sub(hn::Mul(high, high), square), hn::Add(cross, cross)), hn::Mul(low, low))};
#endif
}

/// e^(-scale x^2) for scale = 1 or 1/2.
template <class V>
HWY_INLINE V exp_minus_square(V x, double scale) {
  const Two<V> square = exact_square(x);
  return hn::Mul(exp(hn::Mul(constant<V>(-scale), square.first)), hn::NegMulAdd(constant<V>(scale), square.second, constant<V>(1)));
}

/// erfc(t) e^(t^2) for t >= 1/2.
template <class V>
HWY_INLINE V erfcx_tail(V t) {
  const V u = hn::Div(constant<V>(1), hn::Add(t, constant<V>(2)));
  return hn::Mul(u, polynomial(u, ErfTable<Lane<V>>::kTail));
}

template <class V>
HWY_INLINE V erf(V x) {
  const V one = constant<V>(1), t = hn::Abs(x);
  const V small = hn::Mul(x, polynomial(hn::Mul(x, x), ErfTable<Lane<V>>::kSmall));
  const V bounded = hn::Min(t, constant<V>(ErfTable<Lane<V>>::kLimit));
  const V large = hn::CopySign(hn::NegMulAdd(exp_minus_square(bounded, 1), erfcx_tail(bounded), one), x);
  return hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::Le(t, one)), small, large);
}

/// The normal distribution: density and cumulative probability at x.
template <class V>
HWY_INLINE Two<V> normal_distribution(V x) {
  constexpr double kRootHalf = 0.70710678118654752440, kInverseRootTwoPi = 0.39894228040143267794;
  const V half = constant<V>(0.5), limit = constant<V>(ErfTable<Lane<V>>::kLimit / kRootHalf);
  const V bounded = hn::Min(hn::Abs(x), limit), t = hn::Mul(bounded, constant<V>(kRootHalf)), gauss = exp_minus_square(bounded, 0.5);
  const V signed_t = hn::Mul(x, constant<V>(kRootHalf));
  const V centre = hn::MulAdd(hn::Mul(half, signed_t), polynomial(hn::Mul(signed_t, signed_t), ErfTable<Lane<V>>::kSmall), half);
  const V lower = hn::Mul(hn::Mul(half, gauss), erfcx_tail(t));
  const V tail = hn::IfThenElse(hn::Lt(x, constant<V>(0)), lower, hn::Sub(constant<V>(1), lower));
  const V nan_or_gauss = hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(gauss, constant<V>(kInverseRootTwoPi)));
  return {nan_or_gauss, hn::IfThenElse(hn::Or(hn::IsNaN(x), hn::Le(t, half)), centre, tail)};
}

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LAMINA_KERNELS_CPU_SIMD_MATH_H
