#include <lamina/autograd/graph.h>
#include <lamina/ops/softmax.h>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina {

namespace {

/// A tensor seen as [outer, count, inner], with the axis in the middle.
struct Middle {
  int64_t outer = 1, count = 1, inner = 1;
};

Middle middle(const Shape& shape, int axis) {
  Middle result;
  for (int i = 0; i < shape.rank(); ++i) (i < axis ? result.outer : i == axis ? result.count : result.inner) *= shape[i];
  return result;
}

Tensor softmax_forward(const char* op, bool log, const Tensor& x, int axis) {
  const Middle at = middle(x.shape(), x.shape().normalize_axis(axis, op));
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  with_float(op, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::softmax<T>(x.device())->softmax(log, at.outer, at.count, at.inner, x.data<T>(), y.mutable_data<T>());
  });
  return autograd::record(op, {x}, y, autograd::save({y}), [op, log, at](autograd::Backward& b) {
    const Tensor& out = b.saved(0);
    Tensor dx = Tensor::empty(out.shape(), out.dtype(), out.device());
    with_float(op, out.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::softmax<T>(out.device())->softmax_backward(log, at.outer, at.count, at.inner, out.data<T>(), b.dy().data<T>(), dx.mutable_data<T>());
    });
    b.give(0, std::move(dx));
  });
}

}  // namespace

Tensor softmax(const Tensor& x, int axis) { return softmax_forward("softmax", false, x, axis); }
Tensor log_softmax(const Tensor& x, int axis) { return softmax_forward("log_softmax", true, x, axis); }

}  // namespace lamina
