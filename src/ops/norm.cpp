#include <lamina/autograd/graph.h>
#include <lamina/ops/norm.h>

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina {

namespace {

/// An argument that goes with x: undefined, or of this shape and of x's dtype and device.
void check_companion(const char* op, const char* name, const Tensor& value, const Shape& shape, const Tensor& x) {
  if (!value.defined()) return;
  if (value.shape() != shape) fail(op, "{}: expected {}, got {} (x is {})", name, shape, value.shape(), x.shape());
  if (value.dtype() != x.dtype()) fail(op, "{}: expected {} as x, got {}", name, x.dtype(), value.dtype());
  if (!(value.device() == x.device())) fail(op, "{}: expected it on {} as x, got {}", name, x.device(), value.device());
}

void check_eps(const char* op, double eps) {
  if (!(eps >= 0 && std::isfinite(eps))) fail(op, "eps: expected a number >= 0, got {}", eps);
}

template <class T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}
template <class T>
T* mutable_data_or_null(Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data<T>() : nullptr;
}

/// The three gradients of a normaliser: buffers for those that are needed.
struct Gradients {
  Tensor dx, dgain, dbias;

  Gradients(autograd::Backward& b, const Tensor& x, const Shape& affine) {
    if (b.needs(0)) dx = Tensor::empty(x.shape(), x.dtype(), x.device());
    if (b.needs(1)) dgain = Tensor::empty(affine, x.dtype(), x.device());
    if (b.needs(2)) dbias = Tensor::empty(affine, x.dtype(), x.device());
  }
  void give(autograd::Backward& b) {
    if (dx.defined()) b.give(0, std::move(dx));
    if (dgain.defined()) b.give(1, std::move(dgain));
    if (dbias.defined()) b.give(2, std::move(dbias));
  }
};

kernels::RowNorm layer_norm_rows(const Tensor& x, const Shape& normalized_shape, double eps) {
  const Shape& shape = x.shape();
  if (!is_float(x.dtype())) fail_dtype("layer_norm", "f32 or f64", x.dtype());
  if (normalized_shape.rank() == 0) fail("layer_norm", "normalized_shape: expected at least one axis, got [] (x is {})", shape);
  const int leading = shape.rank() - normalized_shape.rank();
  if (leading < 0 || !std::equal(normalized_shape.begin(), normalized_shape.end(), shape.begin() + leading))
    fail("layer_norm", "x: expected a shape that ends in {}, got {}", normalized_shape, shape);
  kernels::RowNorm rows{.rows = 1, .width = normalized_shape.numel(), .eps = eps};
  for (int i = 0; i < leading; ++i) rows.rows *= shape[i];
  if (rows.rows > 0 && rows.width == 0) fail("layer_norm", "x: expected at least one element per row, got {}", shape);
  rows.measured = rows.affine_count = rows.width;
  return rows;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& gain, const Tensor& bias, double eps) {
  const kernels::RowNorm rows = layer_norm_rows(x, normalized_shape, eps);
  check_companion("layer_norm", "gain", gain, normalized_shape, x);
  check_companion("layer_norm", "bias", bias, normalized_shape, x);
  check_eps("layer_norm", eps);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  Tensor mean = Tensor::empty({rows.rows}, x.dtype(), x.device());
  Tensor rstd = Tensor::empty({rows.rows}, x.dtype(), x.device());
  with_float("layer_norm", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::norm<T>(x.device())
        ->row_forward(rows, x.data<T>(), data_or_null<T>(gain), data_or_null<T>(bias), y.mutable_data<T>(), mean.mutable_data<T>(),
                      rstd.mutable_data<T>());
  });
  return autograd::record("layer_norm", {x, gain, bias}, y, autograd::save({x, gain, mean, rstd}), [rows, normalized_shape](autograd::Backward& b) {
    const Tensor& input = b.saved(0);
    Gradients grads(b, input, normalized_shape);
    with_float("layer_norm", input.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::norm<T>(input.device())
          ->row_backward(rows, input.data<T>(), data_or_null<T>(b.saved(1)), b.saved(2).data<T>(), b.saved(3).data<T>(), b.dy().data<T>(),
                         mutable_data_or_null<T>(grads.dx), mutable_data_or_null<T>(grads.dgain), mutable_data_or_null<T>(grads.dbias));
    });
    grads.give(b);
  });
}

namespace {

/// running = (1 - momentum) running + momentum batch, with the unbiased variance. A batch whose statistics are not finite is left out whole: one bad
/// batch must not spoil every later evaluation.
template <class T>
void update_running_statistics(const kernels::ChannelNorm& spec, const Tensor& mean, const Tensor& var, Tensor& running_mean, Tensor& running_var,
                               Tensor& batches_tracked, const BatchNormOptions& options) {
  const auto& reduce = kernels::reduce<T>(mean.device());
  if (!reduce->all_finite(spec.channels, mean.data<T>()) || !reduce->all_finite(spec.channels, var.data<T>())) return;
  double momentum = options.momentum;
  if (batches_tracked.defined()) {
    const int64_t count = ++*batches_tracked.mutable_data<int64_t>();
    if (options.cumulative) momentum = 1.0 / static_cast<double>(count);
  }
  const double m = static_cast<double>(spec.batch * spec.space);
  const double unbiased = spec.unbiased ? 1.0 : m / (m - 1);
  T* total_mean = running_mean.mutable_data<T>();
  T* total_var = running_var.mutable_data<T>();
  for (int64_t c = 0; c < spec.channels; ++c) {
    const double batch_mean = mean.data<T>()[c], batch_var = var.data<T>()[c] * unbiased;
    total_mean[c] = static_cast<T>((1 - momentum) * total_mean[c] + momentum * batch_mean);
    total_var[c] = static_cast<T>((1 - momentum) * total_var[c] + momentum * batch_var);
  }
}

kernels::ChannelNorm batch_norm_channels(const Tensor& x, const BatchNormOptions& options) {
  if (x.rank() < 2) fail("batch_norm", "x: expected [N, C] or [N, C, ...], got {}", x.shape());
  if (!is_float(x.dtype())) fail_dtype("batch_norm", "f32 or f64", x.dtype());
  kernels::ChannelNorm spec{.batch = x.size(0), .channels = x.size(1), .unbiased = options.unbiased, .eps = options.eps};
  for (int i = 2; i < x.rank(); ++i) spec.space *= x.size(i);
  return spec;
}

void check_running_statistics(const Tensor& x, const Shape& channels, const Tensor& running_mean, const Tensor& running_var,
                              const Tensor& batches_tracked, const BatchNormOptions& options) {
  if (running_mean.defined() != running_var.defined())
    fail("batch_norm", "{}: expected running_mean and running_var both or neither", running_mean.defined() ? "running_var" : "running_mean");
  check_companion("batch_norm", "running_mean", running_mean, channels, x);
  check_companion("batch_norm", "running_var", running_var, channels, x);
  if (batches_tracked.defined() && (batches_tracked.dtype() != DType::i64 || batches_tracked.numel() != 1))
    fail("batch_norm", "batches_tracked: expected one i64, got {} {}", batches_tracked.dtype(), batches_tracked.shape());
  if (!(options.momentum >= 0 && options.momentum <= 1)) fail("batch_norm", "momentum: expected a number in [0, 1], got {}", options.momentum);
  if (options.cumulative && running_mean.defined() && !batches_tracked.defined())
    fail("batch_norm", "batches_tracked: a cumulative average needs the count of batches");
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, Tensor running_mean, Tensor running_var, Tensor batches_tracked,
                  BatchNormOptions options) {
  const kernels::ChannelNorm spec = batch_norm_channels(x, options);
  const Shape channels{spec.channels};
  check_companion("batch_norm", "gain", gain, channels, x);
  check_companion("batch_norm", "bias", bias, channels, x);
  check_running_statistics(x, channels, running_mean, running_var, batches_tracked, options);
  check_eps("batch_norm", options.eps);
  const bool given = !options.training && running_mean.defined();
  const int64_t values = spec.batch * spec.space;
  if (!given && values == 1)
    fail("batch_norm", "expected more than one value per channel {}, got x of {}", options.training ? "in training" : "for batch statistics",
         x.shape());

  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  // Of the running mean a copy, so that a later step in training may change it before this graph runs backward.
  Tensor mean = given ? running_mean.clone() : Tensor::zeros(channels, x.dtype(), x.device());
  Tensor var = given ? running_var : Tensor::ones(channels, x.dtype(), x.device());
  Tensor rstd = Tensor::empty(channels, x.dtype(), x.device());
  with_float("batch_norm", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto& norm = kernels::norm<T>(x.device());
    Tensor shift;  // what the mean's rounding lost
    if (!given && values > 0) {
      shift = Tensor::empty(channels, x.dtype(), x.device());
      norm->channel_statistics(spec, x.data<T>(), mean.mutable_data<T>(), shift.mutable_data<T>(), var.mutable_data<T>());
    }
    norm->channel_forward(spec, x.data<T>(), mean.data<T>(), data_or_null<T>(shift), var.data<T>(), data_or_null<T>(gain), data_or_null<T>(bias),
                          y.mutable_data<T>(), rstd.mutable_data<T>());
    if (options.training && running_mean.defined() && values > 0)
      update_running_statistics<T>(spec, mean, var, running_mean, running_var, batches_tracked, options);
  });
  return autograd::record("batch_norm", {x, gain, bias}, y, autograd::save({x, gain, mean, rstd}), [spec, given](autograd::Backward& b) {
    const Tensor& input = b.saved(0);
    Gradients grads(b, input, {spec.channels});
    with_float("batch_norm", input.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::norm<T>(input.device())
          ->channel_backward(spec, given, input.data<T>(), data_or_null<T>(b.saved(1)), b.saved(2).data<T>(), b.saved(3).data<T>(), b.dy().data<T>(),
                             mutable_data_or_null<T>(grads.dx), mutable_data_or_null<T>(grads.dgain), mutable_data_or_null<T>(grads.dbias));
    });
    grads.give(b);
  });
}

}  // namespace lamina
