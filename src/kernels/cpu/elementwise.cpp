// Integers, comparison and selection: plain loops. What floating types compute is in elementwise_unary.cpp and elementwise_binary.cpp.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <type_traits>

#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/elementwise_float.h"
#include "kernels/kernels.h"

namespace lamina::kernels {
namespace {

using cpu::at_step;
using cpu::Step;

constexpr int64_t kGrain = 65536;  // elements below which a range is not worth a thread
template <class T>
constexpr bool kFloating = std::is_floating_point_v<T>;

/// Integer arithmetic wraps around.
template <class T, class F>
T wrapped(T a, T b, F f) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<U>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b))));
}

/// z = f(a, b) element by element.
template <class T, class Z, class F>
void combine(const Broadcast& space, const T* a, const T* b, Z* z, F f) {
  const int64_t sa = cpu::inner_axis(space).strides[0], sb = cpu::inner_axis(space).strides[1];
  cpu::with_steps(sa, sb, [&]<Step step_a, Step step_b>() {
    cpu::for_each_run(space, kGrain, [&](int64_t first, int64_t count, const std::array<int64_t, 3>& offsets) {
      const T *pa = a + offsets[0], *pb = b + offsets[1];
      for (int64_t i = 0; i < count; ++i) z[first + i] = f(pa[at_step<step_a>(i, sa)], pb[at_step<step_b>(i, sb)]);
    });
  });
}

template <class T>
void binary_integer(Binary op, const Broadcast& space, const T* a, const T* b, T* z) {
  const auto apply = [&](auto f) { combine(space, a, b, z, f); };
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
      cpu::binary(op, space, a, b, z);
    } else {
      binary_integer(op, space, a, b, z);
    }
  }

  void compare(Compare op, const Broadcast& space, const T* a, const T* b, uint8_t* z) const override {
    const auto apply = [&](auto f) { combine(space, a, b, z, f); };
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
    cpu::with_steps(sa, sb, [&]<Step step_a, Step step_b>() {
      cpu::for_each_run(space, kGrain, [&](int64_t first, int64_t count, const std::array<int64_t, 3>& offsets) {
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
    if constexpr (kFloating<T>) {
      cpu::accumulate(n, x, y);
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = wrapped(y[i], x[i], [](uint64_t p, uint64_t q) { return p + q; });
    }
  }
};

template <class T>
const ElementwiseKernels<T>& instance() {
  static const CpuElementwise<T> kernels;
  return kernels;
}

}  // namespace

template <>
const ElementwiseKernels<float>& CpuBackend::elementwise<float>() {
  return instance<float>();
}
template <>
const ElementwiseKernels<double>& CpuBackend::elementwise<double>() {
  return instance<double>();
}
template <>
const ElementwiseKernels<int64_t>& CpuBackend::elementwise<int64_t>() {
  return instance<int64_t>();
}
template <>
const ElementwiseKernels<uint8_t>& CpuBackend::elementwise<uint8_t>() {
  return instance<uint8_t>();
}

}  // namespace lamina::kernels
