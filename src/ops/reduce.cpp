#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <limits>

#include "core/tensor_impl.h"
#include "kernels/kernels.h"
#include "ops/broadcast.h"

namespace lamina {

namespace {

using autograd::Backward;
using kernels::Reduction;

/// What a set of axes leaves of a shape.
struct Reduced {
  std::array<bool, Shape::max_rank> over{};
  Shape kept;         // reduced axes with size 1
  Shape result;       // the shape asked for
  int64_t count = 1;  // elements per result
};

Reduced reduced(const char* op, const Shape& shape, const Axes& axes, bool keep) {
  Reduced r;
  r.kept = shape;
  if (axes.empty())
    for (int i = 0; i < shape.rank(); ++i) r.over[static_cast<size_t>(i)] = true;
  for (const int axis : axes) {
    bool& over = r.over[static_cast<size_t>(shape.normalize_axis(axis, op))];
    if (over) fail(op, "axis {} is named twice (shape {})", axis, shape);
    over = true;
  }
  std::array<int64_t, Shape::max_rank> left{};
  size_t rank = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    const int64_t size = shape.begin()[i];
    if (r.over[static_cast<size_t>(i)]) {
      r.count *= size;
      r.kept = r.kept.with(i, 1);
    } else {
      left[rank++] = size;
    }
  }
  r.result = keep ? r.kept : Shape(std::span<const int64_t>(left.data(), rank));
  return r;
}

/// One pass per run of neighbouring reduced axes, from the last run to the first; without history.
Tensor reduce_values(const char* op, Reduction reduction, const Tensor& x, const Reduced& r) {
  Tensor y = x;
  const auto over = [&](int axis) { return r.over[static_cast<size_t>(axis)] || x.shape().begin()[axis] == 1; };
  for (int last = x.rank() - 1; last >= 0; --last) {
    if (!over(last)) continue;
    int first = last;
    while (first > 0 && over(first - 1)) --first;
    int64_t outer = 1, axis = 1, inner = 1;
    Shape shape = y.shape();
    for (int i = 0; i < x.rank(); ++i) {
      (i < first ? outer : i <= last ? axis : inner) *= y.shape().begin()[i];
      if (i >= first && i <= last) shape = shape.with(i, 1);
    }
    last = first;
    if (axis == 1) continue;
    Tensor next = Tensor::empty(shape, x.dtype(), x.device());
    with_float(op, x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::reduce<T>(x.device())->reduce(reduction, outer, axis, inner, y.data<T>(), next.mutable_data<T>());
    });
    y = next;
  }
  // Nothing to reduce: still a tensor of its own.
  return y.is_same(x) ? detail::view(x.clone(), r.result) : detail::view(y, r.result);
}

/// dy, which has r.result's shape, spread over x's shape.
Tensor spread(const Tensor& dy, const Shape& kept, const Shape& shape) { return expand(detail::view(dy, kept), shape); }

Tensor extreme(const char* op, Reduction reduction, const Tensor& x, const Axes& axes, bool keep) {
  const Reduced r = reduced(op, x.shape(), axes, keep);
  if (r.count == 0 && r.result.numel() > 0) fail(op, "nothing to choose from: {} has no elements along the reduced axes", x.shape());
  if (!is_float(x.dtype())) fail_dtype(op, "f32 or f64", x.dtype());
  Tensor y = reduce_values(op, reduction, x, r);
  if (!autograd::recording({x})) return y;

  return autograd::record(op, {x}, y, autograd::save({x, y}), [r](Backward& b) {
    const Tensor& x = b.saved(0);
    const Tensor chosen = maximum(eq(x, detail::view(b.saved(1), r.kept)), ne(x, x));  // NaN wins, and equals nothing
    const Tensor ties = sum_to(chosen.cast(x.dtype()), r.kept);
    const Tensor zero = Tensor::scalar(0.0, x.dtype(), x.device());
    b.give(0, where(chosen, detail::view(b.dy(), r.kept) / ties, zero));
  });
}

Tensor arg_extreme(const char* op, bool largest, const Tensor& x, int axis, bool keep) {
  axis = x.shape().normalize_axis(axis, op);
  const auto blocks = ops::blocks_around(x.shape(), axis);
  const Shape shape = keep ? x.shape().with(axis, 1) : x.shape().without(axis);
  if (blocks.axis == 0 && shape.numel() > 0) fail(op, "nothing to choose from: {} has no elements along axis {}", x.shape(), axis);
  Tensor y = Tensor::empty(shape, DType::i64, x.device());
  with_float(op, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (y.numel() > 0)
      kernels::reduce<T>(x.device())->arg_reduce(largest, blocks.outer, blocks.axis, blocks.inner, x.data<T>(), y.mutable_data<int64_t>());
  });
  return y;
}

}  // namespace

Tensor sum(const Tensor& x, const Axes& axes, bool keep) {
  const Reduced r = reduced("sum", x.shape(), axes, keep);
  if (!is_float(x.dtype())) fail_dtype("sum", "f32 or f64", x.dtype());
  Tensor y = reduce_values("sum", Reduction::sum, x, r);
  if (!autograd::recording({x})) return y;
  return autograd::record("sum", {x}, y, {}, [kept = r.kept, shape = x.shape()](Backward& b) { b.give(0, spread(b.dy(), kept, shape)); });
}

Tensor mean(const Tensor& x, const Axes& axes, bool keep) {
  const Reduced r = reduced("mean", x.shape(), axes, keep);
  if (!is_float(x.dtype())) fail_dtype("mean", "f32 or f64", x.dtype());
  const double count = static_cast<double>(r.count);
  Tensor y = reduce_values("mean", Reduction::sum, x, r) / count;
  if (!autograd::recording({x})) return y;
  return autograd::record("mean", {x}, y, {},
                          [kept = r.kept, count, shape = x.shape()](Backward& b) { b.give(0, spread(b.dy() / count, kept, shape)); });
}

Tensor var(const Tensor& x, const Axes& axes, int correction, bool keep) {
  const Reduced r = reduced("var", x.shape(), axes, keep);
  if (!is_float(x.dtype())) fail_dtype("var", "f32 or f64", x.dtype());
  const double freedom = r.count > correction ? static_cast<double>(r.count - correction) : std::numeric_limits<double>::quiet_NaN();
  const double count = static_cast<double>(r.count);
  Tensor centre, shift, y;
  {
    const NoGrad no_grad;
    const auto total = [&](const Tensor& terms) { return detail::view(reduce_values("var", Reduction::sum, terms, r), r.kept); };
    centre = total(x) / count;
    const Tensor deviations = x - centre;
    // What the mean's rounding lost; at a large offset it is not small against the deviations.
    shift = total(deviations) / count;
    y = detail::view((total(square(deviations)) - square(shift) * count) / freedom, r.result);
    y = maximum(y, Tensor::scalar(0.0, y.dtype(), y.device()));
  }
  if (!autograd::recording({x})) return y;
  // d/dx sum (x - m)^2 = 2 (x - m): the term through m is the sum of x - m, which is 0.
  return autograd::record("var", {x}, y, autograd::save({x, centre, shift}), [kept = r.kept, freedom](Backward& b) {
    b.give(0, (b.saved(0) - b.saved(1) - b.saved(2)) * (detail::view(b.dy(), kept) * (2.0 / freedom)));
  });
}

Tensor max(const Tensor& x, const Axes& axes, bool keep) { return extreme("max", Reduction::max, x, axes, keep); }
Tensor min(const Tensor& x, const Axes& axes, bool keep) { return extreme("min", Reduction::min, x, axes, keep); }

Tensor norm(const Tensor& x, const Axes& axes, bool keep) {
  const Reduced r = reduced("norm", x.shape(), axes, keep);
  if (!is_float(x.dtype())) fail_dtype("norm", "f32 or f64", x.dtype());
  Tensor y;
  {
    const NoGrad no_grad;
    // In f64: no square of an f32 overflows or vanishes there.
    y = sqrt(reduce_values("norm", Reduction::sum, square(x.cast(DType::f64)), r)).cast(x.dtype());
  }
  if (!autograd::recording({x})) return y;
  return autograd::record("norm", {x}, y, autograd::save({x, y}), [kept = r.kept](Backward& b) {
    const Tensor y = detail::view(b.saved(1), kept), dy = detail::view(b.dy(), kept);
    const Tensor zero = Tensor::scalar(0.0, y.dtype(), y.device());
    b.give(0, b.saved(0) * where(eq(y, 0.0), zero, dy / y));
  });
}

Tensor argmax(const Tensor& x, int axis, bool keep) { return arg_extreme("argmax", true, x, axis, keep); }
Tensor argmin(const Tensor& x, int axis, bool keep) { return arg_extreme("argmin", false, x, axis, keep); }

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  if (!ops::broadcasts_to(shape, x.shape())) fail("sum_to", "{} does not broadcast to {}", shape, x.shape());
  if (!is_float(x.dtype())) fail_dtype("sum_to", "f32 or f64", x.dtype());
  Reduced r;
  const int missing = x.rank() - shape.rank();
  for (int i = 0; i < x.rank(); ++i) r.over[static_cast<size_t>(i)] = i < missing || (shape.begin()[i - missing] == 1 && x.shape().begin()[i] != 1);
  r.result = shape;
  Tensor y = reduce_values("sum_to", Reduction::sum, x, r);
  if (!autograd::recording({x})) return y;
  return autograd::record("sum_to", {x}, y, {}, [target = x.shape()](Backward& b) { b.give(0, expand(b.dy(), target)); });
}

bool all_finite(const Tensor& x) {
  return with_float("all_finite", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Tensor finite = Tensor::ones({}, DType::u8, x.device());
    kernels::reduce<T>(x.device())->all_finite(x.numel(), x.data<T>(), finite.mutable_data<uint8_t>());
    return finite.item() != 0;
  });
}

}  // namespace lamina
