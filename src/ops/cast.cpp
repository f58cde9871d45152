#include <lamina/autograd/graph.h>
#include <lamina/core/tensor.h>

#include "kernels/kernels.h"

namespace lamina {

Tensor Tensor::cast(DType target) const {
  const DType source = dtype();
  if (target == source) return *this;
  Tensor y = empty(shape(), target, device());
  kernels::move(device())->cast(source, target, numel(), raw_data(), y.mutable_raw_data());
  if (!is_float(target)) return y;  // integers have no gradient; integers themselves never require one
  return autograd::record("cast", {*this}, y, {}, [source](autograd::Backward& b) { b.give(0, b.dy().cast(source)); });
}

}  // namespace lamina
