// Functions of one variable and their derivatives, of a floating type: one pass over the arrays. What they give at infinities, NaN and kinks is what
// kernels/cpu/elementwise_unary.cpp gives.

#include <cmath>
#include <cstdlib>

#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/elementwise.h"

namespace lamina::kernels::cuda {

namespace {

template <class T>
__device__ T sign(T x) {  // NaN stays NaN, and so do zeros
  return x > 0 ? T(1) : x < 0 ? T(-1) : x;
}
template <class T>
__device__ T larger(T x, T bound) {
  return x < bound ? bound : x;  // a NaN stays
}
template <class T>
__device__ T smaller(T x, T bound) {
  return x > bound ? bound : x;
}
template <class T>
__device__ T within(T x, T bound) {
  return smaller(larger(x, -bound), bound);
}
/// x, but for the far end where a factor that is 0 there must win over infinity.
template <class T>
__device__ T without_negative_infinity(T x) {
  return x < T(-1e4) ? T(0) : x;
}

template <class T>
__device__ T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}
template <class T>
__device__ T softplus(T x) {
  return larger(x, T(0)) + std::log1p(std::exp(-std::fabs(x)));
}

/// e^(-scale x^2), with the rounding error of the square put back.
template <class T>
__device__ T exp_minus_square(T x, T scale) {
  const T square = x * x;
  return std::exp(-scale * square) * (1 - scale * std::fma(x, x, -square));
}

/// The normal distribution: density and cumulative probability at x, both with all digits in the tails.
template <class T>
struct Normal {
  __device__ explicit Normal(T x) {
    constexpr double root_half = 0.70710678118654752440, inverse_root_two_pi = 0.39894228040143267794;
    constexpr T high = static_cast<T>(root_half), low = static_cast<T>(root_half - static_cast<double>(high));
    const T bounded = within(x, T(40)), t = -bounded * high, rest = std::fma(-bounded, high, -t) - bounded * low;  // t + rest = -x / sqrt 2
    density = static_cast<T>(inverse_root_two_pi) * exp_minus_square(bounded, T(0.5));
    cumulative = T(0.5) * std::erfc(t) - static_cast<T>(2 * root_half) * density * rest;
  }
  T density, cumulative;
};

constexpr double root_two_over_pi = 0.79788456080286535588, cubic = 0.044715, two_over_root_pi = 1.12837916709551257390;

/// 2 sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh(u)) = sigmoid(2u) keeps the digits of the lower tail.
template <class T>
__device__ T gelu_argument(T x) {
  return T(2 * root_two_over_pi) * x * std::fma(T(cubic), x * x, T(1));
}
template <class T>
__device__ T gelu_gradient(T x) {
  const Normal<T> normal(x);
  return std::fma(within(x, T(1e4)), normal.density, normal.cumulative);
}
template <class T>
__device__ T gelu_tanh_gradient(T x) {
  const T bounded = within(x, T(1e4)), s = sigmoid(gelu_argument(bounded));
  const T slope = T(2 * root_two_over_pi) * std::fma(T(3 * cubic), bounded * bounded, T(1));
  return std::fma(bounded * slope, s * (1 - s), s);
}
template <class T>
__device__ T silu_gradient(T x) {
  const T bounded = within(x, T(1e4)), s = sigmoid(bounded);
  return s * std::fma(bounded, 1 - s, T(1));
}

template <Unary op, class T>
__device__ T value_of(T x, [[maybe_unused]] T p) {
  if constexpr (op == Unary::neg) {
    return -x;
  } else if constexpr (op == Unary::abs) {
    return std::fabs(x);
  } else if constexpr (op == Unary::exp) {
    return std::exp(x);
  } else if constexpr (op == Unary::log) {
    return std::log(x);
  } else if constexpr (op == Unary::sqrt) {
    return std::sqrt(x);
  } else if constexpr (op == Unary::square) {
    return x * x;
  } else if constexpr (op == Unary::reciprocal) {
    return 1 / x;
  } else if constexpr (op == Unary::relu) {
    return larger(x, T(0));
  } else if constexpr (op == Unary::leaky_relu) {
    return x <= 0 ? p * x : x;
  } else if constexpr (op == Unary::tanh) {
    return std::tanh(x);
  } else if constexpr (op == Unary::sigmoid) {
    return sigmoid(x);
  } else if constexpr (op == Unary::gelu) {
    return without_negative_infinity(x) * Normal<T>(x).cumulative;
  } else if constexpr (op == Unary::gelu_tanh) {
    return without_negative_infinity(x) * sigmoid(gelu_argument(x));
  } else if constexpr (op == Unary::silu) {
    return without_negative_infinity(x) * sigmoid(x);
  } else if constexpr (op == Unary::softplus) {
    return softplus(x);
  } else if constexpr (op == Unary::pow) {
    return std::pow(x, p);
  } else if constexpr (op == Unary::add_scalar) {
    return x + p;
  } else if constexpr (op == Unary::mul_scalar) {
    return x * p;
  } else if constexpr (op == Unary::rsub_scalar) {
    return p - x;
  } else if constexpr (op == Unary::rdiv_scalar) {
    return p / x;
  } else if constexpr (op == Unary::clamp_min) {
    return larger(x, p);
  } else if constexpr (op == Unary::clamp_max) {
    return smaller(x, p);
  } else if constexpr (op == Unary::sin) {
    return std::sin(x);
  } else if constexpr (op == Unary::cos) {
    return std::cos(x);
  } else if constexpr (op == Unary::erf) {
    return std::erf(x);
  } else if constexpr (op == Unary::log1p) {
    return std::log1p(x);
  } else if constexpr (op == Unary::expm1) {
    return std::expm1(x);
  } else if constexpr (op == Unary::sign) {
    return sign(x);
  } else {
    static_assert(op == Unary::floor);
    return std::floor(x);
  }
}

/// dy op'(x); v is x or y, as saved_by(op) says.
template <Unary op, class T>
__device__ T gradient_of([[maybe_unused]] T v, T dy, [[maybe_unused]] T p) {
  if constexpr (op == Unary::neg || op == Unary::rsub_scalar) {
    return -dy;
  } else if constexpr (op == Unary::add_scalar) {
    return dy;
  } else if constexpr (op == Unary::mul_scalar) {
    return dy * p;
  } else if constexpr (op == Unary::sign || op == Unary::floor) {
    return 0;
  } else if constexpr (op == Unary::exp) {
    return dy * v;
  } else if constexpr (op == Unary::expm1) {
    return dy * (v + 1);
  } else if constexpr (op == Unary::sqrt) {  // no gradient stays none where the slope is not finite
    return dy == 0 ? T(0) : T(0.5) * dy / v;
  } else if constexpr (op == Unary::reciprocal) {
    return -(dy * (v * v));
  } else if constexpr (op == Unary::relu) {
    return v <= 0 ? T(0) : dy;
  } else if constexpr (op == Unary::tanh) {
    return dy * std::fma(-v, v, T(1));
  } else if constexpr (op == Unary::sigmoid) {
    return dy * (v * (1 - v));
  } else if constexpr (op == Unary::abs) {
    return dy * sign(v);
  } else if constexpr (op == Unary::square) {
    return dy * (v + v);
  } else if constexpr (op == Unary::log) {
    return dy / v;
  } else if constexpr (op == Unary::log1p) {
    return dy / (1 + v);
  } else if constexpr (op == Unary::rdiv_scalar) {
    return -(dy * (p / v / v));
  } else if constexpr (op == Unary::leaky_relu) {
    return v <= 0 ? dy * p : dy;
  } else if constexpr (op == Unary::clamp_min) {
    return v >= p ? dy : T(0);
  } else if constexpr (op == Unary::clamp_max) {
    return v <= p ? dy : T(0);
  } else if constexpr (op == Unary::gelu) {
    return dy * gelu_gradient(v);
  } else if constexpr (op == Unary::gelu_tanh) {
    return dy * gelu_tanh_gradient(v);
  } else if constexpr (op == Unary::silu) {
    return dy * silu_gradient(v);
  } else if constexpr (op == Unary::softplus) {
    return dy * sigmoid(v);
  } else if constexpr (op == Unary::sin) {
    return dy * std::cos(v);
  } else if constexpr (op == Unary::cos) {
    return dy * -std::sin(v);
  } else if constexpr (op == Unary::erf) {
    return dy * (T(two_over_root_pi) * exp_minus_square(within(v, T(1e4)), T(1)));
  } else {
    static_assert(op == Unary::pow);
    return dy * (p * std::pow(v, p - 1));
  }
}

template <Unary op, class T>
__global__ void __launch_bounds__(flat_threads) unary_forward(Flat flat, dptr<const T> x, dptr<T> y, T p) {
  flat.each<Pack<T>::size>([&](auto width, int64_t at) {
    constexpr int vec = decltype(width)::value;
    Chunk<T, vec> values = load_chunk<T, vec>(x + at);
#pragma unroll
    for (int k = 0; k < vec; ++k) values.at[k] = value_of<op>(values.at[k], p);
    store_chunk<T, vec>(y + at, values);
  });
}

template <Unary op, class T, SavedBy saved_by_op>
__global__ void __launch_bounds__(flat_threads) unary_gradient(Flat flat, dptr<const T> saved, dptr<const T> dy, dptr<T> dx, T p) {
  flat.each<Pack<T>::size>([&](auto width, int64_t at) {
    constexpr int vec = decltype(width)::value;
    Chunk<T, vec> values = load_chunk<T, vec>(dy + at), of = values;
    if constexpr (saved_by_op != SavedBy::nothing) of = load_chunk<T, vec>(saved + at);
#pragma unroll
    for (int k = 0; k < vec; ++k) values.at[k] = gradient_of<op>(of.at[k], values.at[k], p);
    store_chunk<T, vec>(dx + at, values);
  });
}

/// f<op>().
template <class F>
void with_op(Unary op, F&& f) {
  switch (op) {
    case Unary::neg: return f.template operator()<Unary::neg>();
    case Unary::abs: return f.template operator()<Unary::abs>();
    case Unary::exp: return f.template operator()<Unary::exp>();
    case Unary::log: return f.template operator()<Unary::log>();
    case Unary::sqrt: return f.template operator()<Unary::sqrt>();
    case Unary::square: return f.template operator()<Unary::square>();
    case Unary::reciprocal: return f.template operator()<Unary::reciprocal>();
    case Unary::relu: return f.template operator()<Unary::relu>();
    case Unary::leaky_relu: return f.template operator()<Unary::leaky_relu>();
    case Unary::tanh: return f.template operator()<Unary::tanh>();
    case Unary::sigmoid: return f.template operator()<Unary::sigmoid>();
    case Unary::gelu: return f.template operator()<Unary::gelu>();
    case Unary::gelu_tanh: return f.template operator()<Unary::gelu_tanh>();
    case Unary::silu: return f.template operator()<Unary::silu>();
    case Unary::softplus: return f.template operator()<Unary::softplus>();
    case Unary::pow: return f.template operator()<Unary::pow>();
    case Unary::add_scalar: return f.template operator()<Unary::add_scalar>();
    case Unary::mul_scalar: return f.template operator()<Unary::mul_scalar>();
    case Unary::rsub_scalar: return f.template operator()<Unary::rsub_scalar>();
    case Unary::rdiv_scalar: return f.template operator()<Unary::rdiv_scalar>();
    case Unary::clamp_min: return f.template operator()<Unary::clamp_min>();
    case Unary::clamp_max: return f.template operator()<Unary::clamp_max>();
    case Unary::sin: return f.template operator()<Unary::sin>();
    case Unary::cos: return f.template operator()<Unary::cos>();
    case Unary::erf: return f.template operator()<Unary::erf>();
    case Unary::log1p: return f.template operator()<Unary::log1p>();
    case Unary::expm1: return f.template operator()<Unary::expm1>();
    case Unary::sign: return f.template operator()<Unary::sign>();
    case Unary::floor: return f.template operator()<Unary::floor>();
  }
  std::abort();
}

}  // namespace

template <class T>
void unary(Unary op, int64_t n, const T* x, T* y, double p) {
  if (op == Unary::pow && p == 2) op = Unary::square;
  if (op == Unary::pow && p == 1) op = Unary::mul_scalar;
  const Flat flat = Flat::of<Pack<T>::size>(n, x, y);
  with_op(op, [&]<Unary known>() {
    launch(Op("unary", {{"n", n}, {"op", static_cast<int64_t>(op)}}), unary_forward<known, T>, flat.blocks<Pack<T>::size>(), flat_threads, 0,
           stream(), flat, x, y, static_cast<T>(p));
  });
}

template <class T>
void unary_backward(Unary op, int64_t n, const T* x, const T* y, const T* dy, T* dx, double p) {
  if (op == Unary::pow && p == 2) op = Unary::square;
  if (op == Unary::pow && p == 1) op = Unary::add_scalar;
  if (op == Unary::pow && p == 0) op = Unary::floor;
  const T* const saved = saved_by(op) == SavedBy::input ? x : saved_by(op) == SavedBy::output ? y : dy;
  const Flat flat = Flat::of<Pack<T>::size>(n, saved, dy, dx);
  with_op(op, [&]<Unary known>() {
    launch(Op("unary_backward", {{"n", n}, {"op", static_cast<int64_t>(op)}}), unary_gradient<known, T, saved_by(known)>,
           flat.blocks<Pack<T>::size>(), flat_threads, 0, stream(), flat, saved, dy, dx, static_cast<T>(p));
  });
}

template void unary(Unary, int64_t, const float*, float*, double);
template void unary(Unary, int64_t, const double*, double*, double);
template void unary_backward(Unary, int64_t, const float*, const float*, const float*, float*, double);
template void unary_backward(Unary, int64_t, const double*, const double*, const double*, double*, double);

}  // namespace lamina::kernels::cuda
