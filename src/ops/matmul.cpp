#include <lamina/autograd/graph.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/shape_ops.h>

#include <algorithm>

#include "core/tensor_impl.h"
#include "kernels/kernels.h"
#include "ops/broadcast.h"

namespace lamina {

namespace {

using autograd::Backward;

/// A stack of matrices [..., rows, columns], each used transposed or as it stands.
struct Side {
  const Tensor& x;
  bool transposed;

  int64_t rows() const { return x.size(transposed ? -1 : -2); }
  int64_t columns() const { return x.size(transposed ? -2 : -1); }
  int64_t matrix() const { return x.size(-2) * x.size(-1); }
  Shape batch() const { return Shape(std::span<const int64_t>(x.shape().begin(), x.shape().end() - 2)); }
};

int64_t leading(int64_t columns) { return std::max<int64_t>(columns, 1); }

template <class T>
class Product {
 public:
  Product(Side a, Side b, Tensor& c, const kernels::Broadcast& batch)
      : kernels_(kernels::gemm<T>(c.device())),
        m_(a.rows()),
        n_(b.columns()),
        k_(a.columns()),
        space_(batch),
        ldc_(leading(n_)),
        c_(c.mutable_data<T>()) {
    a_ = {a.x.data<T>(), leading(a.x.size(-1)), a.transposed};
    b_ = {b.x.data<T>(), leading(b.x.size(-1)), b.transposed};
    const int64_t matrix[3] = {a.matrix(), b.matrix(), m_ * n_};
    for (size_t operand = 0; operand < 3; ++operand)
      for (int64_t& stride : space_.strides[operand]) stride *= matrix[operand];
  }

  void run() {
    while (space_.rank > 0 && fold()) --space_.rank;
    std::array<int64_t, Shape::max_rank> index{};
    const int outer = std::max(space_.rank - 1, 0);
    for (;;) {
      run_inner(index);
      int axis = outer - 1;
      for (; axis >= 0 && ++index[static_cast<size_t>(axis)] == space_.sizes[static_cast<size_t>(axis)]; --axis) index[static_cast<size_t>(axis)] = 0;
      if (axis < 0) return;
    }
  }

 private:
  /// Takes the innermost batch axis into the product itself where the layout lets one larger product do its work.
  bool fold() {
    const size_t axis = static_cast<size_t>(space_.rank) - 1;
    const int64_t count = space_.sizes[axis], stride_a = space_.strides[0][axis], stride_b = space_.strides[1][axis],
                  stride_c = space_.strides[2][axis];
    // One right operand for all: the rows of the left ones stand under each other.
    if (stride_b == 0 && !a_.transposed && stride_a == m_ * a_.ld && stride_c == m_ * ldc_) {
      m_ *= count;
      return true;
    }
    // Summed over this axis: the terms of the inner products stand under each other on both sides.
    if (stride_c == 0 && a_.transposed && !b_.transposed && stride_a == k_ * a_.ld && stride_b == k_ * b_.ld) {
      k_ *= count;
      return true;
    }
    return false;
  }

  void run_inner(const std::array<int64_t, Shape::max_rank>& index) const {
    int64_t offset[3] = {0, 0, 0};
    bool first = true;  // of the products that are summed into this part of c
    for (size_t axis = 0; axis + 1 < static_cast<size_t>(std::max(space_.rank, 1)); ++axis) {
      for (size_t operand = 0; operand < 3; ++operand) offset[operand] += index[axis] * space_.strides[operand][axis];
      if (space_.strides[2][axis] == 0 && index[axis] > 0) first = false;
    }
    const kernels::Matrix<T> a{a_.data + offset[0], a_.ld, a_.transposed}, b{b_.data + offset[1], b_.ld, b_.transposed};
    T* c = c_ + offset[2];
    if (space_.rank == 0) {
      kernels_->gemm(m_, n_, k_, a, b, first ? T(0) : T(1), c, ldc_);
      return;
    }
    const size_t axis = static_cast<size_t>(space_.rank) - 1;
    const int64_t count = space_.sizes[axis], stride_a = space_.strides[0][axis], stride_b = space_.strides[1][axis],
                  stride_c = space_.strides[2][axis];
    if (stride_c != 0) {
      kernels_->gemm_batched(count, m_, n_, k_, a, stride_a, b, stride_b, first ? T(0) : T(1), c, ldc_, stride_c);
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      kernels_->gemm(m_, n_, k_, {a.data + i * stride_a, a.ld, a.transposed}, {b.data + i * stride_b, b.ld, b.transposed},
                     first && i == 0 ? T(0) : T(1), c, ldc_);
  }

  kernels::Timed<kernels::GemmKernels<T>> kernels_;
  int64_t m_, n_, k_;
  kernels::Broadcast space_;
  kernels::Matrix<T> a_, b_;
  int64_t ldc_;
  T* c_;
};

/// The products of two stacks; those along batch axes that `batch` lacks are summed.
Tensor product(Side a, Side b, const Shape& batch) {
  const Shape all = broadcast("matmul", a.batch(), b.batch());
  std::array<int64_t, Shape::max_rank> sizes{};
  int64_t* end = std::copy(batch.begin(), batch.end(), sizes.begin());
  *end++ = a.rows();
  *end++ = b.columns();
  const Shape shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(end - sizes.data())));
  if (all.numel() == 0) return Tensor::zeros(shape, a.x.dtype(), a.x.device());
  Tensor c = Tensor::empty(shape, a.x.dtype(), a.x.device());
  if (c.numel() == 0) return c;
  with_float("matmul", c.dtype(), [&](auto zero) {
    Product<decltype(zero)>(a, b, c, ops::broadcast_space(all, {a.batch(), b.batch(), batch})).run();
  });
  return c;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions options) {
  if (a.rank() < 2 || b.rank() < 2) fail("matmul", "expected operands of rank 2 or more, got {} and {}", a.shape(), b.shape());
  ops::check_same_kind("matmul", a, b);
  const Side left{a, options.transpose_a}, right{b, options.transpose_b};
  if (left.columns() != right.rows())
    fail("matmul", "inner sizes differ: {}{} has {} columns, {}{} has {} rows", a.shape(), options.transpose_a ? " transposed" : "", left.columns(),
         b.shape(), options.transpose_b ? " transposed" : "", right.rows());
  Tensor c = product(left, right, broadcast("matmul", left.batch(), right.batch()));
  if (!autograd::recording({a, b})) return c;

  return autograd::record("matmul", {a, b}, c, autograd::save({b.requires_grad() ? a : Tensor(), a.requires_grad() ? b : Tensor()}),
                          [options, batch_a = left.batch(), batch_b = right.batch()](Backward& back) {
                            const auto [ta, tb] = options;
                            const Tensor& dc = back.dy();
                            // dA = dC op(B)^T and dB = op(A)^T dC, or their transposes where A or B itself was used transposed.
                            if (back.needs(0)) {
                              const Tensor& b = back.saved(1);
                              back.give(0, ta ? product({b, tb}, {dc, true}, batch_a) : product({dc, false}, {b, !tb}, batch_a));
                            }
                            if (back.needs(1)) {
                              const Tensor& a = back.saved(0);
                              back.give(1, tb ? product({dc, true}, {a, ta}, batch_b) : product({a, !ta}, {dc, false}, batch_b));
                            }
                          });
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (weight.rank() != 2) fail("linear", "weight: expected [out, in], got {}", weight.shape());
  if (x.rank() < 1 || x.size(-1) != weight.size(1))
    fail("linear", "x: expected [..., {}], got {} (weight is {})", weight.size(1), x.shape(), weight.shape());
  ops::check_same_kind("linear", x, weight);
  const int64_t in = weight.size(1), out = weight.size(0);
  if (bias.defined()) {
    if (bias.shape() != Shape{out}) fail("linear", "bias: expected {}, got {} (weight is {})", Shape{out}, bias.shape(), weight.shape());
    ops::check_same_kind("linear", x, bias);
  }
  int64_t rows = 1;
  for (const int64_t size : x.shape().without(-1)) rows *= size;

  Tensor y = Tensor::empty(x.shape().with(-1, out), x.dtype(), x.device());
  with_float("linear", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::gemm<T>(x.device())
        ->gemm(rows, out, in, {x.data<T>(), leading(in)}, {weight.data<T>(), leading(in), true}, T(0), y.mutable_data<T>(), leading(out),
               bias.defined() ? bias.data<T>() : nullptr);
  });
  if (!autograd::recording({x, weight, bias})) return y;

  return autograd::record(
      "linear", {x, weight, bias}, y, autograd::save({weight.requires_grad() ? x : Tensor(), x.requires_grad() ? weight : Tensor()}),
      [rows, in, out, x_shape = x.shape()](Backward& b) {
        const Tensor& dy = b.dy();
        if (b.needs(1)) b.give_product(1, detail::view(dy, {rows, out}), detail::view(b.saved(0), {rows, in}));  // dW = dy^T x
        with_float("linear", dy.dtype(), [&](auto zero) {
          using T = decltype(zero);
          if (b.needs(0)) {  // dx = dy W
            Tensor dx = Tensor::empty(x_shape, dy.dtype(), dy.device());
            kernels::gemm<T>(dy.device())
                ->gemm(rows, in, out, {dy.data<T>(), leading(out)}, {b.saved(1).data<T>(), leading(in)}, T(0), dx.mutable_data<T>(), leading(in));
            b.give(0, std::move(dx));
          }
          if (b.needs(2)) {  // db = column sums of dy
            Tensor db = Tensor::empty({out}, dy.dtype(), dy.device());
            kernels::reduce<T>(dy.device())->reduce(kernels::Reduction::sum, 1, rows, out, dy.data<T>(), db.mutable_data<T>());
            b.give(2, std::move(db));
          }
        });
      });
}

}  // namespace lamina
