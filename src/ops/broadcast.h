#pragma once
// Iteration spaces for kernels, and the checks that ops with several operands share. Private to src/ops.

#include <array>
#include <initializer_list>

#include <lamina/core/tensor.h>

#include "core/format.h"
#include "kernels/elementwise.h"

namespace lamina::ops {

using Strides = std::array<int64_t, Shape::max_rank>;

/// Element strides of a row-major tensor of this shape.
Strides strides_of(const Shape& shape);

/// The space over `sizes` with given strides per operand. Axes of size 1 are dropped and neighbours merged wherever every operand allows it.
kernels::Broadcast merge_axes(const Shape& sizes, std::initializer_list<Strides> operands);

/// Whether a tensor of this shape can be expanded to `target`.
bool broadcasts_to(const Shape& shape, const Shape& target);

/// The space over `out` for row-major operands whose shapes broadcast to it.
kernels::Broadcast broadcast_space(const Shape& out, std::initializer_list<Shape> operands);

/// There is no implicit promotion: both operands have one dtype and one device.
inline void check_same_kind(const char* op, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype())
    fail(op, "expected operands of one dtype, got {} {} and {} {}; cast() one of them", a.dtype(), a.shape(), b.dtype(), b.shape());
  if (!(a.device() == b.device())) fail(op, "expected operands on one device, got {} and {}; move one of them with to()", a.device(), b.device());
}

/// A one-element tensor like x. Throws Error when x holds integers and `value` is not one of them.
Tensor scalar_like(const char* op, const Tensor& x, double value);
void check_representable(const char* op, DType dtype, double value);

/// A block [outer, axis, inner] around one axis.
struct Blocks {
  int64_t outer = 1, axis = 1, inner = 1;
};
inline Blocks blocks_around(const Shape& shape, int axis) {
  Blocks blocks;
  for (int i = 0; i < shape.rank(); ++i) (i < axis ? blocks.outer : i == axis ? blocks.axis : blocks.inner) *= shape.begin()[i];
  return blocks;
}

}  // namespace lamina::ops
