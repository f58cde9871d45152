#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/shape_ops.h>

#include <algorithm>

#include "core/tensor_impl.h"
#include "kernels/cuda/fault.h"
#include "kernels/kernels.h"
#include "ops/broadcast.h"

namespace lamina {

namespace {

using autograd::Backward;

std::string position_text(const Shape& shape, int64_t flat) {
  std::vector<int64_t> position(static_cast<size_t>(shape.rank()));
  for (size_t axis = position.size(); axis-- > 0; flat /= shape.begin()[axis]) position[axis] = flat % shape.begin()[axis];
  return fmt::format("[{}]", fmt::join(position, ", "));
}

/// Throws unless every element of `index` (i64) is in [0, limit); `what` says of what, e.g. "axis 1 of [4, 5]". On a GPU the kernels look at the
/// elements, and a FaultName gives them these names.
template <class What>
void check_index(const char* op, const char* argument, const Tensor& index, Device device, int64_t limit, What&& what) {
  if (index.dtype() != DType::i64) fail(op, "{}: expected i64, got {} {}", argument, index.dtype(), index.shape());
  if (!(index.device() == device)) fail(op, "{}: expected it on {}, got {}", argument, device, index.device());
  if (!device.is_cpu()) return;
  const int64_t* values = index.data<int64_t>();
  const int64_t bad = kernels::first_out_of_range(index.numel(), values, limit);
  if (bad < index.numel())
    fail(op, "{}: {} at position {} is out of range 0 to {} ({})", argument, values[bad], position_text(index.shape(), bad), limit - 1, what());
}

}  // namespace

Tensor index_select(const Tensor& x, int axis, const Tensor& index) {
  axis = x.shape().normalize_axis(axis, "index_select");
  if (index.rank() != 1) fail("index_select", "index: expected one axis, got {}", index.shape());
  check_index("index_select", "index", index, x.device(), x.size(axis), [&] { return fmt::format("axis {} of {}", axis, x.shape()); });
  const auto blocks = ops::blocks_around(x.shape(), axis);
  const int64_t count = index.numel(), row = blocks.inner * static_cast<int64_t>(size_of(x.dtype()));
  Tensor y = Tensor::empty(x.shape().with(axis, count), x.dtype(), x.device());
  if (y.numel() > 0) {
    const kernels::FaultName name("index_select", "index");
    const char* source = static_cast<const char*>(x.raw_data());
    char* target = static_cast<char*>(y.mutable_raw_data());
    for (int64_t o = 0; o < blocks.outer; ++o)
      kernels::move(x.device())
          ->gather_rows(count, blocks.axis, row, source + o * blocks.axis * row, index.data<int64_t>(), target + o * count * row);
  }
  if (!autograd::recording({x})) return y;

  return autograd::record("index_select", {x}, y, autograd::save({index}), [blocks, count, shape = x.shape()](Backward& b) {
    const Tensor& dy = b.dy();
    Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
    with_float("index_select", dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      T* target = dx.mutable_data<T>();
      for (int64_t o = 0; o < blocks.outer; ++o)
        kernels::index<T>(dy.device())
            ->scatter_add_rows(count, blocks.inner, dy.data<T>() + o * count * blocks.inner, b.saved(0).template data<int64_t>(), blocks.axis,
                               target + o * blocks.axis * blocks.inner);
    });
    b.give(0, dx);
  });
}

Tensor gather(const Tensor& x, int axis, const Tensor& index) {
  axis = x.shape().normalize_axis(axis, "gather");
  if (index.rank() != x.rank()) fail("gather", "index: expected rank {} as x, got {} (x is {})", x.rank(), index.shape(), x.shape());
  for (int i = 0; i < x.rank(); ++i) {
    if (i == axis || index.size(i) == x.size(i)) continue;
    if (index.size(i) > x.size(i)) fail("gather", "index: {} is larger than x, {}, along axis {}", index.shape(), x.shape(), i);
    return gather(slice(x, i, 0, index.size(i)), axis, index);
  }
  check_index("gather", "index", index, x.device(), x.size(axis), [&] { return fmt::format("axis {} of {}", axis, x.shape()); });
  const auto blocks = ops::blocks_around(x.shape(), axis);
  const int64_t count = index.size(axis);
  Tensor y = Tensor::empty(index.shape(), x.dtype(), x.device());
  const kernels::FaultName name("gather", "index");
  if (y.numel() > 0)
    with_type(x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::index<T>(x.device())->gather(blocks.outer, blocks.axis, count, blocks.inner, x.data<T>(), index.data<int64_t>(), y.mutable_data<T>());
    });
  if (!autograd::recording({x})) return y;

  return autograd::record("gather", {x}, y, autograd::save({index}), [blocks, count, shape = x.shape()](Backward& b) {
    const Tensor& dy = b.dy();
    Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
    with_float("gather", dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::index<T>(dy.device())
          ->scatter_add(blocks.outer, blocks.axis, count, blocks.inner, dy.data<T>(), b.saved(0).template data<int64_t>(), dx.mutable_data<T>());
    });
    b.give(0, dx);
  });
}

Tensor embedding(const Tensor& ids, const Tensor& table, int64_t padding) {
  if (table.rank() != 2) fail("embedding", "table: expected [V, C], got {}", table.shape());
  const int64_t rows = table.size(0), width = table.size(1);
  if (padding < -1 || padding >= rows) fail("embedding", "padding: expected -1 or a row of the table {}, got {}", table.shape(), padding);
  check_index("embedding", "ids", ids, table.device(), rows, [&] { return fmt::format("the table is {}", table.shape()); });
  Tensor y = Tensor::empty(ids.shape().insert(ids.rank(), width), table.dtype(), table.device());
  const kernels::FaultName name("embedding", "ids");
  if (y.numel() > 0)
    kernels::move(table.device())
        ->gather_rows(ids.numel(), rows, width * static_cast<int64_t>(size_of(table.dtype())), table.raw_data(), ids.data<int64_t>(),
                      y.mutable_raw_data());
  if (!autograd::recording({table})) return y;

  return autograd::record("embedding", {table}, y, autograd::save({ids}), [padding, rows, width](Backward& b) {
    const Tensor& dy = b.dy();
    const Tensor& ids = b.saved(0);
    Tensor dtable = Tensor::empty({rows, width}, dy.dtype(), dy.device());
    with_float("embedding", dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      T* target = dtable.mutable_data<T>();
      kernels::index<T>(dy.device())->scatter_add_rows(ids.numel(), width, dy.data<T>(), ids.data<int64_t>(), rows, target);
      if (padding >= 0) kernels::move(dy.device())->fill(dy.dtype(), width, 0.0, target + padding * width);
    });
    b.give(0, dtable);
  });
}

Tensor one_hot(const Tensor& index, int64_t classes, DType dtype) {
  if (classes < 0) fail("one_hot", "expected a number of classes >= 0, got {}", classes);
  check_index("one_hot", "index", index, index.device(), classes, [&] { return fmt::format("{} classes", classes); });
  if (!index.device().is_cpu() && index.numel() > 0) {  // a kernel that looks at the indices
    const kernels::FaultName name("one_hot", "index");
    const Tensor rows = Tensor::zeros({std::max<int64_t>(classes, 1)}, DType::u8, index.device());
    Tensor picked = Tensor::empty(index.shape(), DType::u8, index.device());
    kernels::move(index.device())->gather_rows(index.numel(), classes, 1, rows.raw_data(), index.data<int64_t>(), picked.mutable_raw_data());
  }
  return eq(unsqueeze(index, -1), Tensor::arange(classes, DType::i64, index.device())).cast(dtype);
}

}  // namespace lamina
