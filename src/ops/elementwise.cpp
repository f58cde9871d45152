#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>

#include <cmath>

#include "kernels/kernels.h"
#include "ops/broadcast.h"

namespace lamina {

namespace {

using autograd::Backward;
using kernels::Binary;
using kernels::SavedBy;
using kernels::Unary;

// -- one operand ------------------------------------------------------------------------------------------------------

constexpr bool takes_integers(Unary op) { return op == Unary::neg || op == Unary::abs || op == Unary::add_scalar || op == Unary::mul_scalar; }

Tensor unary_gradient(Unary op, const Tensor& x, const Tensor& y, const Tensor& dy, double p) {
  Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
  with_float("backward", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::elementwise<T>(dy.device())
        ->unary_backward(op, dy.numel(), x.defined() ? x.data<T>() : nullptr, y.defined() ? y.data<T>() : nullptr, dy.data<T>(), dx.mutable_data<T>(),
                         p);
  });
  return dx;
}

Tensor unary(const char* name, Unary op, const Tensor& x, double p = 0) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    kernels::elementwise<T>(x.device())->unary(op, x.numel(), x.data<T>(), y.mutable_data<T>(), p);
  };
  if (takes_integers(op) && !is_float(x.dtype())) {
    if (x.dtype() == DType::u8 && op == Unary::neg) fail(name, "expected a signed dtype, got {}; cast() it first", x.dtype());
    ops::check_representable(name, x.dtype(), p);
    with_type(x.dtype(), run);
    return y;
  }
  with_float(name, x.dtype(), run);
  if (!autograd::recording({x})) return y;

  const SavedBy by = kernels::saved_by(op);
  return autograd::record(
      name, {x}, y, by == SavedBy::nothing ? autograd::Saved{} : autograd::save({by == SavedBy::input ? x : y}), [op, p](Backward& b) {
        if (op == Unary::add_scalar) return b.give(0, b.dy());
        const SavedBy by = kernels::saved_by(op);
        b.give(0, unary_gradient(op, by == SavedBy::input ? b.saved(0) : Tensor(), by == SavedBy::output ? b.saved(0) : Tensor(), b.dy(), p));
      });
}

// -- two operands -----------------------------------------------------------------------------------------------------

/// What a gradient is made of; only what its rule names is there.
struct Operands {
  const Tensor& dy;
  const Tensor& a;
  const Tensor& b;
  const Tensor& y;
};

constexpr unsigned reads_a = 1, reads_b = 2, reads_y = 4;

struct BinaryRule {
  const char* name;
  bool integers;
  unsigned da_reads;
  Tensor (*da)(const Operands&);
  unsigned db_reads;
  Tensor (*db)(const Operands&);
};

/// dy to the larger side (`less` compares so that it is the one to leave out), half of it where both are equal.
Tensor winner_share(const Tensor& dy, const Tensor& equal, const Tensor& loses) {
  return where(equal, dy * 0.5, where(loses, ops::scalar_like("maximum", dy, 0.0), dy));
}

// In the order of kernels::Binary.
constexpr BinaryRule rules[] = {
    {"add", true, 0, [](const Operands& o) { return o.dy; }, 0, [](const Operands& o) { return o.dy; }},
    {"sub", true, 0, [](const Operands& o) { return o.dy; }, 0, [](const Operands& o) { return -o.dy; }},
    {"mul", true, reads_b, [](const Operands& o) { return o.dy * o.b; }, reads_a, [](const Operands& o) { return o.dy * o.a; }},
    // d(a/b)/db = -a/b^2 = -y/b
    {"div", false, reads_b, [](const Operands& o) { return o.dy / o.b; }, reads_b | reads_y, [](const Operands& o) { return -(o.dy * o.y / o.b); }},
    {"maximum", true, reads_a | reads_b, [](const Operands& o) { return winner_share(o.dy, eq(o.a, o.b), lt(o.a, o.b)); }, reads_a | reads_b,
     [](const Operands& o) { return winner_share(o.dy, eq(o.a, o.b), gt(o.a, o.b)); }},
    {"minimum", true, reads_a | reads_b, [](const Operands& o) { return winner_share(o.dy, eq(o.a, o.b), gt(o.a, o.b)); }, reads_a | reads_b,
     [](const Operands& o) { return winner_share(o.dy, eq(o.a, o.b), lt(o.a, o.b)); }},
    // b a^(b-1), which is 0 (not 0 * inf) for b = 0; and y log(a), taken as 0 at a = 0.
    {"pow", false, reads_a | reads_b,
     [](const Operands& o) { return o.dy * where(eq(o.b, 0.0), ops::scalar_like("pow", o.b, 0.0), o.b * pow(o.a, o.b - 1.0)); }, reads_a | reads_y,
     [](const Operands& o) { return o.dy * where(eq(o.a, 0.0), ops::scalar_like("pow", o.a, 0.0), o.y * log(o.a)); }},
};

Tensor binary(Binary op, const Tensor& a, const Tensor& b) {
  const BinaryRule& rule = rules[static_cast<size_t>(op)];
  ops::check_same_kind(rule.name, a, b);
  const Shape shape = broadcast(rule.name, a.shape(), b.shape());
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    kernels::elementwise<T>(a.device())
        ->binary(op, ops::broadcast_space(shape, {a.shape(), b.shape()}), a.data<T>(), b.data<T>(), y.mutable_data<T>());
  };
  if (rule.integers)
    with_type(a.dtype(), run);
  else
    with_float(rule.name, a.dtype(), run);
  if (!autograd::recording({a, b})) return y;

  const unsigned reads = (a.requires_grad() ? rule.da_reads : 0) | (b.requires_grad() ? rule.db_reads : 0);
  autograd::Saved saved;
  if (reads) saved = autograd::save({reads & reads_a ? a : Tensor(), reads & reads_b ? b : Tensor(), reads & reads_y ? y : Tensor()});
  return autograd::record(rule.name, {a, b}, y, std::move(saved), [&rule, reads, a_shape = a.shape(), b_shape = b.shape()](Backward& back) {
    static const Tensor none;
    const auto saved = [&](int index) -> const Tensor& { return reads >> index & 1u ? back.saved(index) : none; };
    const Operands operands{back.dy(), saved(0), saved(1), saved(2)};
    if (back.needs(0)) back.give(0, sum_to(rule.da(operands), a_shape));
    if (back.needs(1)) back.give(1, sum_to(rule.db(operands), b_shape));
  });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return binary(Binary::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary(Binary::sub, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary(Binary::mul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return binary(Binary::div, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary(Binary::max, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary(Binary::min, a, b); }
Tensor pow(const Tensor& a, const Tensor& b) { return binary(Binary::pow, a, b); }

Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }

Tensor operator+(const Tensor& a, double b) { return unary("add", Unary::add_scalar, a, b); }
Tensor operator+(double a, const Tensor& b) { return b + a; }
Tensor operator-(const Tensor& a, double b) {
  if (a.dtype() == DType::u8) return sub(a, ops::scalar_like("sub", a, b));  // -b is no value of u8
  return unary("sub", Unary::add_scalar, a, -b);
}
Tensor operator-(double a, const Tensor& b) { return unary("sub", Unary::rsub_scalar, b, a); }
Tensor operator*(const Tensor& a, double b) { return unary("mul", Unary::mul_scalar, a, b); }
Tensor operator*(double a, const Tensor& b) { return b * a; }
Tensor operator/(double a, const Tensor& b) { return unary("div", Unary::rdiv_scalar, b, a); }
Tensor operator-(const Tensor& a) { return unary("neg", Unary::neg, a); }

Tensor operator/(const Tensor& a, double b) {
  // A product with 1/b has the bits of the quotient only where 1/b is exact, for powers of two (also in f32 when within its range).
  int exponent = 0;
  if (std::abs(std::frexp(b, &exponent)) == 0.5 && std::abs(exponent) < 100 && is_float(a.dtype()))
    return unary("div", Unary::mul_scalar, a, 1.0 / b);
  return div(a, Tensor::scalar(b, a.dtype(), a.device()));
}

Tensor pow(const Tensor& a, double b) { return b == 2.0 ? square(a) : unary("pow", Unary::pow, a, b); }

Tensor abs(const Tensor& x) { return unary("abs", Unary::abs, x); }
Tensor exp(const Tensor& x) { return unary("exp", Unary::exp, x); }
Tensor expm1(const Tensor& x) { return unary("expm1", Unary::expm1, x); }
Tensor log(const Tensor& x) { return unary("log", Unary::log, x); }
Tensor log1p(const Tensor& x) { return unary("log1p", Unary::log1p, x); }
Tensor sqrt(const Tensor& x) { return unary("sqrt", Unary::sqrt, x); }
Tensor square(const Tensor& x) { return unary("square", Unary::square, x); }
Tensor reciprocal(const Tensor& x) { return unary("reciprocal", Unary::reciprocal, x); }
Tensor sin(const Tensor& x) { return unary("sin", Unary::sin, x); }
Tensor cos(const Tensor& x) { return unary("cos", Unary::cos, x); }
Tensor erf(const Tensor& x) { return unary("erf", Unary::erf, x); }
Tensor sign(const Tensor& x) { return unary("sign", Unary::sign, x); }
Tensor floor(const Tensor& x) { return unary("floor", Unary::floor, x); }
Tensor relu(const Tensor& x) { return unary("relu", Unary::relu, x); }
Tensor leaky_relu(const Tensor& x, double slope) { return unary("leaky_relu", Unary::leaky_relu, x, slope); }
Tensor tanh(const Tensor& x) { return unary("tanh", Unary::tanh, x); }
Tensor sigmoid(const Tensor& x) { return unary("sigmoid", Unary::sigmoid, x); }
Tensor gelu(const Tensor& x, Gelu form) { return unary("gelu", form == Gelu::exact ? Unary::gelu : Unary::gelu_tanh, x); }
Tensor silu(const Tensor& x) { return unary("silu", Unary::silu, x); }
Tensor softplus(const Tensor& x) { return unary("softplus", Unary::softplus, x); }

Tensor clamp(const Tensor& x, double low, double high) {
  if (!(low <= high)) fail("clamp", "expected low <= high, got {} and {}", low, high);
  return unary("clamp", Unary::clamp_max, unary("clamp", Unary::clamp_min, x, low), high);
}

}  // namespace lamina
