#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>

#include "kernels/kernels.h"
#include "ops/broadcast.h"

namespace lamina {

namespace {

using kernels::Compare;

constexpr const char* names[] = {"eq", "ne", "lt", "le", "gt", "ge"};  // in the order of kernels::Compare

// Piecewise constant: no gradient, and asking for none is no error.
Tensor compare(Compare op, const Tensor& a, const Tensor& b) {
  const char* name = names[static_cast<size_t>(op)];
  ops::check_same_kind(name, a, b);
  const Shape shape = broadcast(name, a.shape(), b.shape());
  Tensor y = Tensor::empty(shape, DType::u8, a.device());
  with_type(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::elementwise<T>(a.device())
        ->compare(op, ops::broadcast_space(shape, {a.shape(), b.shape()}), a.data<T>(), b.data<T>(), y.mutable_data<uint8_t>());
  });
  return y;
}

Tensor compare(Compare op, const Tensor& a, double b) { return compare(op, a, ops::scalar_like(names[static_cast<size_t>(op)], a, b)); }

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare(Compare::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare(Compare::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare(Compare::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare(Compare::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare(Compare::gt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare(Compare::ge, a, b); }
Tensor eq(const Tensor& a, double b) { return compare(Compare::eq, a, b); }
Tensor ne(const Tensor& a, double b) { return compare(Compare::ne, a, b); }
Tensor lt(const Tensor& a, double b) { return compare(Compare::lt, a, b); }
Tensor le(const Tensor& a, double b) { return compare(Compare::le, a, b); }
Tensor gt(const Tensor& a, double b) { return compare(Compare::gt, a, b); }
Tensor ge(const Tensor& a, double b) { return compare(Compare::ge, a, b); }

Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  if (mask.dtype() != DType::u8) fail("where", "mask: expected u8, got {} {}", mask.dtype(), mask.shape());
  ops::check_same_kind("where", a, b);
  if (!(mask.device() == a.device())) fail("where", "mask: expected on {}, got on {}", a.device(), mask.device());
  const Shape shape = broadcast("where", mask.shape(), broadcast("where", a.shape(), b.shape()));
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  with_type(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto space = ops::broadcast_space(shape, {mask.shape(), a.shape(), b.shape()});
    kernels::elementwise<T>(a.device())->where(space, mask.data<uint8_t>(), a.data<T>(), b.data<T>(), y.mutable_data<T>());
  });
  if (!autograd::recording({a, b})) return y;

  return autograd::record("where", {a, b}, y, autograd::save({mask}), [a_shape = a.shape(), b_shape = b.shape()](autograd::Backward& back) {
    // Chosen, not multiplied: 0 * inf would put NaN on the side not taken.
    const Tensor zero = Tensor::scalar(0.0, back.dy().dtype(), back.dy().device());
    if (back.needs(0)) back.give(0, sum_to(where(back.saved(0), back.dy(), zero), a_shape));
    if (back.needs(1)) back.give(1, sum_to(where(back.saved(0), zero, back.dy()), b_shape));
  });
}

}  // namespace lamina
