#include <lamina/autograd/graph.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <algorithm>

#include "core/tensor_impl.h"
#include "kernels/kernels.h"
#include "ops/broadcast.h"

namespace lamina {

namespace {

using autograd::Backward;

int64_t bytes_per_row(const ops::Blocks& blocks, DType dtype) { return blocks.axis * blocks.inner * static_cast<int64_t>(size_of(dtype)); }

/// Elements begin.. of `part`'s length along an axis of x, copied out of x (or, `into`, from part into x).
void copy_part(Tensor& x, Tensor& part, int axis, int64_t begin, bool into) {
  const auto whole = ops::blocks_around(x.shape(), axis), piece = ops::blocks_around(part.shape(), axis);
  const int64_t pitch = bytes_per_row(whole, x.dtype()), width = bytes_per_row(piece, x.dtype());
  if (width == 0 || piece.outer == 0) return;
  const int64_t offset = begin * whole.inner * static_cast<int64_t>(size_of(x.dtype()));
  const auto& move = kernels::move(x.device());
  if (into)
    move->copy_2d(piece.outer, width, part.raw_data(), width, static_cast<char*>(x.mutable_raw_data()) + offset, pitch);
  else
    move->copy_2d(piece.outer, width, static_cast<const char*>(x.raw_data()) + offset, pitch, part.mutable_raw_data(), width);
}

/// A slice without history: a view along axis 0, else a copy.
Tensor slice_values(const Tensor& x, int axis, int64_t begin, int64_t end) {
  const Shape shape = x.shape().with(axis, end - begin);
  if (axis == 0) return detail::view(x, shape, begin * ops::blocks_around(x.shape(), 0).inner * static_cast<int64_t>(size_of(x.dtype())));
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  Tensor source = x;
  copy_part(source, y, axis, begin, false);
  return y;
}

Tensor concat_values(std::span<const Tensor> parts, int axis, const Shape& shape) {
  Tensor y = Tensor::empty(shape, parts[0].dtype(), parts[0].device());
  int64_t begin = 0;
  for (Tensor part : parts) {
    copy_part(y, part, axis, begin, true);
    begin += part.size(axis);
  }
  return y;
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  if (shape == x.shape()) return x;
  if (shape.numel() != x.numel()) fail("reshape", "{} has {} elements, {} has {}", x.shape(), x.numel(), shape, shape.numel());
  return autograd::record("reshape", {x}, detail::view(x, shape), {}, [from = x.shape()](Backward& b) { b.give(0, detail::view(b.dy(), from)); });
}

Tensor reshape(const Tensor& x, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> known = sizes;
  const auto open = std::ranges::find(known, -1);
  if (open != known.end()) {
    *open = 1;
    if (std::ranges::find(known, -1) != known.end()) fail("reshape", "only one size may be -1 (from {})", x.shape());
    const int64_t rest = Shape(std::span<const int64_t>(known)).numel();
    if (rest == 0 || x.numel() % rest != 0)
      fail("reshape", "no size for -1: {} has {} elements, the other sizes hold {}", x.shape(), x.numel(), rest);
    *open = x.numel() / rest;
  }
  return reshape(x, Shape(std::span<const int64_t>(known)));
}

Tensor reshape(const Tensor& x, std::initializer_list<int64_t> sizes) { return reshape(x, std::vector<int64_t>(sizes)); }

Tensor flatten(const Tensor& x, int first, int last) {
  if (x.rank() == 0) return reshape(x, Shape{1});
  first = x.shape().normalize_axis(first, "flatten");
  last = x.shape().normalize_axis(last, "flatten");
  if (first > last) fail("flatten", "first axis {} is after the last, {} (shape {})", first, last, x.shape());
  std::vector<int64_t> sizes(x.shape().begin(), x.shape().begin() + first);
  int64_t flat = 1;
  for (int axis = first; axis <= last; ++axis) flat *= x.size(axis);
  sizes.push_back(flat);
  sizes.insert(sizes.end(), x.shape().begin() + last + 1, x.shape().end());
  return reshape(x, Shape(std::span<const int64_t>(sizes)));
}

Tensor squeeze(const Tensor& x, int axis) {
  axis = x.shape().normalize_axis(axis, "squeeze");
  if (x.size(axis) != 1) fail("squeeze", "axis {} of {} has size {}, expected 1", axis, x.shape(), x.size(axis));
  return reshape(x, x.shape().without(axis));
}

Tensor unsqueeze(const Tensor& x, int axis) { return reshape(x, x.shape().insert(axis, 1)); }

Tensor permute(const Tensor& x, const std::vector<int>& axes) {
  const size_t rank = static_cast<size_t>(x.rank());
  if (axes.size() != rank) fail("permute", "expected {} axes for {}, got {}", rank, x.shape(), axes.size());
  const auto strides = ops::strides_of(x.shape());
  std::array<int64_t, Shape::max_rank> sizes{};
  ops::Strides source{};
  std::vector<int> inverse(rank, -1);
  for (size_t i = 0; i < rank; ++i) {
    const size_t axis = static_cast<size_t>(x.shape().normalize_axis(axes[i], "permute"));
    if (inverse[axis] >= 0) fail("permute", "axis {} is named twice (shape {})", axis, x.shape());
    inverse[axis] = static_cast<int>(i);
    sizes[i] = x.shape().begin()[axis];
    source[i] = strides[axis];
  }
  const Shape shape(std::span<const int64_t>(sizes.data(), rank));
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::move(x.device())->strided_copy(size_of(x.dtype()), ops::merge_axes(shape, {source}), x.raw_data(), y.mutable_raw_data());
  if (!autograd::recording({x})) return y;
  return autograd::record("permute", {x}, y, {}, [inverse](Backward& b) { b.give(0, permute(b.dy(), inverse)); });
}

Tensor transpose(const Tensor& x, int a, int b) {
  std::vector<int> axes(static_cast<size_t>(x.rank()));
  for (int i = 0; i < x.rank(); ++i) axes[static_cast<size_t>(i)] = i;
  std::swap(axes[static_cast<size_t>(x.shape().normalize_axis(a, "transpose"))], axes[static_cast<size_t>(x.shape().normalize_axis(b, "transpose"))]);
  return permute(x, axes);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  if (!ops::broadcasts_to(x.shape(), shape)) fail("expand", "{} does not broadcast to {}", x.shape(), shape);
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::move(x.device())->strided_copy(size_of(x.dtype()), ops::broadcast_space(shape, {x.shape()}), x.raw_data(), y.mutable_raw_data());
  if (!autograd::recording({x})) return y;
  return autograd::record("expand", {x}, y, {}, [from = x.shape()](Backward& b) { b.give(0, sum_to(b.dy(), from)); });
}

Tensor concat(const std::vector<Tensor>& parts, int axis) {
  if (parts.empty()) fail("concat", "expected at least one tensor");
  axis = parts[0].shape().normalize_axis(axis, "concat");
  int64_t total = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    ops::check_same_kind("concat", parts[0], parts[i]);
    const Shape& shape = parts[i].shape();
    if (shape.rank() != parts[0].rank() || shape.with(axis, 0) != parts[0].shape().with(axis, 0))
      fail("concat", "part {}: expected {} but for axis {}, got {}", i, parts[0].shape(), axis, shape);
    total += shape.size(axis);
  }
  Tensor y = concat_values(parts, axis, parts[0].shape().with(axis, total));
  if (!autograd::recording(parts)) return y;

  std::vector<int64_t> sizes;
  for (const Tensor& part : parts) sizes.push_back(part.size(axis));
  return autograd::record("concat", parts, y, {}, [axis, sizes](Backward& b) {
    int64_t begin = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (b.needs(static_cast<int>(i))) b.give(static_cast<int>(i), slice_values(b.dy(), axis, begin, begin + sizes[i]));
      begin += sizes[i];
    }
  });
}

Tensor stack(const std::vector<Tensor>& parts, int axis) {
  if (parts.empty()) fail("stack", "expected at least one tensor");
  const int rank = parts[0].rank() + 1, position = axis < 0 ? axis + rank : axis;
  if (position < 0 || position >= rank) fail("stack", "axis {} is out of range for parts {} (rank {} stacked)", axis, parts[0].shape(), rank);
  std::vector<Tensor> rows;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].shape() != parts[0].shape()) fail("stack", "part {}: expected {}, got {}", i, parts[0].shape(), parts[i].shape());
    rows.push_back(unsqueeze(parts[i], position));
  }
  return concat(rows, position);
}

Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end) {
  axis = x.shape().normalize_axis(axis, "slice");
  const int64_t size = x.size(axis);
  const int64_t first = begin < 0 ? begin + size : begin;
  const int64_t last = end == INT64_MAX ? size : end < 0 ? end + size : end;
  if (first < 0 || last > size || first > last)
    fail("slice", "{}:{} is not a range of axis {} of {}", begin, end == INT64_MAX ? "" : std::to_string(end), axis, x.shape());
  Tensor y = slice_values(x, axis, first, last);
  if (!autograd::recording({x})) return y;
  return autograd::record("slice", {x}, y, {}, [axis, first, shape = x.shape()](Backward& b) {
    Tensor dx = Tensor::zeros(shape, b.dy().dtype(), b.dy().device());
    Tensor dy = b.dy();
    copy_part(dx, dy, axis, first, true);
    b.give(0, dx);
  });
}

Tensor select(const Tensor& x, int axis, int64_t index) {
  axis = x.shape().normalize_axis(axis, "select");
  const int64_t position = index < 0 ? index + x.size(axis) : index;
  if (position < 0 || position >= x.size(axis)) fail("select", "index {} is out of range for axis {} of {}", index, axis, x.shape());
  return reshape(slice(x, axis, position, position + 1), x.shape().without(axis));
}

std::vector<Tensor> split(const Tensor& x, int64_t size, int axis) {
  if (size < 1) fail("split", "expected a size >= 1, got {}", size);
  axis = x.shape().normalize_axis(axis, "split");
  std::vector<Tensor> parts;
  int64_t begin = 0;
  do {
    const int64_t end = std::min(begin + size, x.size(axis));
    parts.push_back(slice_values(x, axis, begin, end));
    begin = end;
  } while (begin < x.size(axis));
  // One node for all parts: their gradients are joined once, where separate slices would each fill a tensor of x's size.
  const size_t count = parts.size();
  return autograd::record_many("split", std::span<const Tensor>(&x, 1), std::move(parts), {}, [axis, count, shape = x.shape()](Backward& b) {
    std::vector<Tensor> dys;
    for (size_t i = 0; i < count; ++i) dys.push_back(b.dy(static_cast<int>(i)));
    b.give(0, concat_values(dys, axis, shape));
  });
}

}  // namespace lamina
