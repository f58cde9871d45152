#pragma once
// Elementwise arithmetic. One function per number of operands, with the operation as an argument.

#include <array>
#include <cstdint>

namespace lamina::kernels {

/// y = op(x), with a parameter p where the comment names one.
enum class Unary : uint8_t {
  neg,
  abs,
  exp,
  log,
  sqrt,
  square,
  reciprocal,
  relu,
  leaky_relu /* p: slope */,
  tanh,
  sigmoid,
  gelu /* exact, erf */,
  gelu_tanh,
  silu,
  softplus,
  pow /* x^p */,
  add_scalar /* x + p */,
  mul_scalar /* x p */,
  rsub_scalar /* p - x */,
  rdiv_scalar /* p / x */,
  clamp_min /* max(x,p) */,
  clamp_max /* min(x,p) */,
  sin,
  cos,
  erf,
  log1p,
  expm1,
  sign,
  floor,
};

/// z = op(a, b).
enum class Binary : uint8_t { add, sub, mul, div, max, min, pow };

/// z = a op b as u8 0 or 1.
enum class Compare : uint8_t { eq, ne, lt, le, gt, ge };

/// Iteration space of a broadcast: row-major over `sizes`, element strides per operand (0 along broadcast axes). Axes are merged where possible.
struct Broadcast {
  int rank = 0;  // 0: one element
  std::array<int64_t, 6> sizes{};
  std::array<std::array<int64_t, 6>, 3> strides{};  // strides[operand][axis]
  int64_t numel = 1;
};

/// For T = int64_t and uint8_t: binary add/sub/mul/max/min, compare, where, and unary neg/abs/add_scalar/mul_scalar only; the rest is never called
/// (ops refuse it first) and aborts. NaN: max, min, relu and clamp propagate it.
template <class T>
struct ElementwiseKernels {
  virtual ~ElementwiseKernels() = default;

  /// y may be x.
  virtual void unary(Unary op, int64_t n, const T* x, T* y, double p) const = 0;

  /// dx = dy * op'(x). `x` is the input and `y` the output of the forward pass; saved_by() says which of the two is read (the other may be null).
  /// dx may be dy. Gradients at kinks: relu'(0) = 0, abs'(0) = 0, clamp passes the gradient at the bound, sqrt'(0) = inf (but 0
  /// where dy is 0).
  virtual void unary_backward(Unary op, int64_t n, const T* x, const T* y, const T* dy, T* dx, double p) const = 0;

  /// z may be a or b when their layout equals z's.
  virtual void binary(Binary op, const Broadcast& space, const T* a, const T* b, T* z) const = 0;
  virtual void compare(Compare op, const Broadcast& space, const T* a, const T* b, uint8_t* z) const = 0;
  /// z = mask ? a : b; operands 0, 1, 2 of `space` are mask, a, b.
  virtual void where(const Broadcast& space, const uint8_t* mask, const T* a, const T* b, T* z) const = 0;

  /// y += x, the graph's sum over uses.
  virtual void accumulate(int64_t n, const T* x, T* y) const = 0;
};

/// What the backward pass of a unary op reads.
enum class SavedBy : uint8_t { nothing, input, output };
constexpr SavedBy saved_by(Unary op) {
  switch (op) {
    case Unary::neg:
    case Unary::add_scalar:
    case Unary::mul_scalar:
    case Unary::rsub_scalar:
    case Unary::sign:
    case Unary::floor: return SavedBy::nothing;
    case Unary::exp:
    case Unary::sqrt:
    case Unary::relu:
    case Unary::tanh:
    case Unary::sigmoid:
    case Unary::reciprocal:
    case Unary::expm1: return SavedBy::output;
    default: return SavedBy::input;
  }
}

}  // namespace lamina::kernels
