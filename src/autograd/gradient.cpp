#include "core/gradient.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <utility>

#include "core/tensor_impl.h"
#include "kernels/kernels.h"

namespace lamina::detail {

namespace {

/// Whether this handle is the only way to its buffer.
bool sole_owner(const Tensor& tensor) { return tensor.impl().use_count() == 1 && tensor.impl()->storage.use_count() == 1; }

double row_product(const Tensor& a, int64_t i, const Tensor& b, int64_t j) {
  return with_float("gradient", a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = a.size(1);
    const T *x = a.data<T>() + i * n, *y = b.data<T>() + j * n;
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(y[k]);
    return sum;
  });
}

/// Whether the sum of two gradients is held as the factors of both.
bool stay_factors(const Gradient& a, const Gradient& b) {
  return !a.factors.empty() && !b.factors.empty() && a.scale == b.scale && a.rows() + b.rows() <= max_factor_rows;
}

}  // namespace

int64_t Gradient::rows() const {
  int64_t count = 0;
  for (const Factors& pair : factors) count += pair.x.size(0);
  return count;
}

bool worth_factoring(int64_t rows, const Shape& weight, Device device) {
  return device.is_cpu() && rows > 0 && rows <= max_factor_rows && rows * (weight[0] + weight[1]) < weight.numel();
}

void materialise(Gradient& gradient, const Shape& shape) {
  if (gradient.factors.empty()) return;
  const Tensor& like = gradient.factors[0].x;
  Tensor dense = Tensor::empty(shape, like.dtype(), like.device());
  with_float("gradient", like.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t out = shape[0], in = shape[1];
    T beta = 0;
    for (const Factors& pair : gradient.factors) {
      kernels::gemm<T>(like.device())
          ->gemm(out, in, pair.x.size(0), {pair.dy.data<T>(), std::max<int64_t>(out, 1), true}, {pair.x.data<T>(), std::max<int64_t>(in, 1), false},
                 beta, dense.mutable_data<T>(), std::max<int64_t>(in, 1));
      beta = 1;
    }
    if (gradient.scale != 1)
      kernels::elementwise<T>(like.device())
          ->unary(kernels::Unary::mul_scalar, dense.numel(), dense.data<T>(), dense.mutable_data<T>(), gradient.scale);
  });
  gradient = {std::move(dense), {}, 1};
}

Tensor owned(Tensor tensor) { return sole_owner(tensor) ? tensor : tensor.clone(); }

Tensor accumulated(Tensor sum, const Tensor& more) {
  sum = owned(std::move(sum));
  with_float("backward", sum.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::elementwise<T>(sum.device())->accumulate(sum.numel(), more.data<T>(), sum.mutable_data<T>());
  });
  return sum;
}

void prepare(Gradient& into, Gradient& more, const Shape& shape) {
  if (!into.defined()) {
    // A backward function may have handed one tensor to several leaves, or kept it: take a buffer of our own.
    if (more.dense.defined()) more.dense = owned(std::move(more.dense));
  } else if (stay_factors(into, more)) {
    into.factors.reserve(into.factors.size() + more.factors.size());
  } else {
    materialise(into, shape);
    materialise(more, shape);
    into.dense = owned(std::move(into.dense));
  }
}

void accumulate(Gradient& into, Gradient more, const Shape& shape) {
  prepare(into, more, shape);
  if (!into.defined()) {
    into = std::move(more);
  } else if (!into.factors.empty()) {
    for (Factors& pair : more.factors) into.factors.push_back(std::move(pair));
  } else {
    into.dense = accumulated(std::move(into.dense), more.dense);
  }
}

namespace {

/// sum += the squares of a dense gradient, in its device's memory.
void add_squares(const Tensor& dense, Tensor& sum) {
  with_float("gradient", dense.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::reduce<T>(dense.device())->sum_of_squares(dense.numel(), dense.data<T>(), sum.mutable_data<double>());
  });
}

}  // namespace

double sum_of_squares(const std::vector<const Gradient*>& gradients) {
  double sum = 0;
  Tensor there;  // what a GPU adds up
  for (const Gradient* gradient : gradients) {
    if (!gradient->dense.defined() || gradient->dense.device().is_cpu()) {
      sum += sum_of_squares(*gradient);
      continue;
    }
    if (there.defined() && !(there.device() == gradient->dense.device())) sum += std::exchange(there, Tensor()).item();
    if (!there.defined()) there = Tensor::zeros({}, DType::f64, gradient->dense.device());
    add_squares(gradient->dense, there);
  }
  return there.defined() ? sum + there.item() : sum;
}

double sum_of_squares(const Gradient& gradient) {
  if (gradient.dense.defined()) {
    Tensor sum = Tensor::zeros({}, DType::f64, gradient.dense.device());
    add_squares(gradient.dense, sum);
    return sum.item();
  }
  double sum = 0;
  for (const Factors& a : gradient.factors)
    for (const Factors& b : gradient.factors)
      for (int64_t i = 0; i < a.x.size(0); ++i)
        for (int64_t j = 0; j < b.x.size(0); ++j) sum += row_product(a.dy, i, b.dy, j) * row_product(a.x, i, b.x, j);
  // Where the rows cancel, rounding may leave a sum below 0 (a NaN stays).
  return std::max(sum, 0.0) * gradient.scale * gradient.scale;
}

void rescale(Gradient& gradient, double factor) {
  if (gradient.dense.defined()) {
    gradient.dense = owned(std::move(gradient.dense));
    with_float("gradient", gradient.dense.dtype(), [&](auto zero) {
      using T = decltype(zero);
      Tensor& g = gradient.dense;
      kernels::elementwise<T>(g.device())->unary(kernels::Unary::mul_scalar, g.numel(), g.data<T>(), g.mutable_data<T>(), factor);
    });
  } else {
    gradient.scale *= factor;
  }
}

bool all_finite(Gradient& gradient, const Shape& shape) {
  if (!gradient.factors.empty()) {
    // No element of the sum, nor a partial sum on the way, can exceed rows * max|dy| * max|x| <= sqrt(sum dy^2) sqrt(sum x^2) over all rows.
    double dy_squares = 0, x_squares = 0;
    for (const Factors& pair : gradient.factors) {
      dy_squares += sum_of_squares({pair.dy, {}, 1});
      x_squares += sum_of_squares({pair.x, {}, 1});
    }
    const double largest = gradient.factors[0].x.dtype() == DType::f32 ? FLT_MAX : DBL_MAX;
    const double bound = std::sqrt(dy_squares) * std::sqrt(x_squares) * std::max(1.0, std::abs(gradient.scale));
    if (bound < 0.5 * largest) return true;
    materialise(gradient, shape);
  }
  return with_float("gradient", gradient.dense.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Tensor finite = Tensor::ones({}, DType::u8, gradient.dense.device());
    kernels::reduce<T>(gradient.dense.device())->all_finite(gradient.dense.numel(), gradient.dense.data<T>(), finite.mutable_data<uint8_t>());
    return finite.item() != 0;
  });
}

}  // namespace lamina::detail
