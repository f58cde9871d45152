#include "ops/broadcast.h"

#include "core/tensor_impl.h"

namespace lamina::ops {

namespace {

Strides broadcast_strides(const Shape& out, const Shape& operand) {
  const Strides own = strides_of(operand);
  Strides strides{};
  const int shift = out.rank() - operand.rank();
  for (int i = 0; i < operand.rank(); ++i) strides[static_cast<size_t>(i + shift)] = operand.begin()[i] == 1 ? 0 : own[static_cast<size_t>(i)];
  return strides;
}

kernels::Broadcast merged(const Shape& sizes, const Strides* operands, size_t count) {
  kernels::Broadcast space;
  space.numel = sizes.numel();
  if (space.numel == 0) {
    space.rank = 1;
    return space;
  }
  for (size_t axis = 0; axis < static_cast<size_t>(sizes.rank()); ++axis) {
    const int64_t size = sizes.begin()[axis];
    if (size == 1) continue;
    const size_t last = static_cast<size_t>(space.rank) - 1;
    bool merge = space.rank > 0;
    for (size_t o = 0; o < count && merge; ++o) merge = space.strides[o][last] == operands[o][axis] * size;
    const size_t target = merge ? last : static_cast<size_t>(space.rank++);
    space.sizes[target] = merge ? space.sizes[target] * size : size;
    for (size_t o = 0; o < count; ++o) space.strides[o][target] = operands[o][axis];
  }
  return space;
}

}  // namespace

Strides strides_of(const Shape& shape) {
  Strides strides{};
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= shape.begin()[axis];
  }
  return strides;
}

kernels::Broadcast merge_axes(const Shape& sizes, std::initializer_list<Strides> operands) {
  return merged(sizes, operands.begin(), operands.size());
}

bool broadcasts_to(const Shape& shape, const Shape& target) {
  const int missing = target.rank() - shape.rank();
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (missing < 0 || (shape.begin()[axis] != 1 && shape.begin()[axis] != target.begin()[axis + missing])) return false;
  return true;
}

kernels::Broadcast broadcast_space(const Shape& out, std::initializer_list<Shape> operands) {
  std::array<Strides, 3> strides{};
  size_t count = 0;
  for (const Shape& operand : operands) strides[count++] = broadcast_strides(out, operand);
  return merged(out, strides.data(), count);
}

void check_representable(const char* op, DType dtype, double value) {
  lamina::detail::check_representable(op, dtype, value, "; cast() the tensor first");
}

Tensor scalar_like(const char* op, const Tensor& x, double value) {
  check_representable(op, x.dtype(), value);
  return Tensor::scalar(value, x.dtype(), x.device());
}

}  // namespace lamina::ops
