// The normalisers of the row kernel: each is a specification of it.

#include <lamina/ops/elementwise.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <algorithm>
#include <limits>

#include "kernels/kernels.h"
#include "ops/norm_support.h"

namespace lamina {

using namespace ops;

namespace {

using kernels::RowNorm;

struct Rows {
  Tensor y, mean, rstd;  // mean [2, rows] as the kernel has it, undefined where rows are not centred
};

Rows forward(const char* op, const RowNorm& spec, const Tensor& x, const Tensor& gain, const Tensor& bias) {
  Rows rows{Tensor::empty(x.shape(), x.dtype(), x.device()), Tensor(), Tensor::empty({spec.rows}, x.dtype(), x.device())};
  if (spec.centre) rows.mean = Tensor::empty({2, spec.rows}, x.dtype(), x.device());
  with_float(op, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::norm<T>(x.device())
        ->row_forward(spec, x.data<T>(), data_or_null<T>(gain), data_or_null<T>(bias), rows.y.mutable_data<T>(), mutable_data_or_null<T>(rows.mean),
                      rows.rstd.mutable_data<T>());
  });
  return rows;
}

/// The gradients from what was saved: x, gain, mean, rstd.
NormGradients backward(const char* op, const RowNorm& spec, autograd::Backward& b, const Shape& affine, bool has_bias) {
  const Tensor& x = b.saved(0);
  NormGradients grads(b, x, affine, has_bias);
  with_float(op, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::norm<T>(x.device())
        ->row_backward(spec, x.data<T>(), data_or_null<T>(b.saved(1)), data_or_null<T>(b.saved(2)), b.saved(3).data<T>(), b.dy().data<T>(),
                       mutable_data_or_null<T>(grads.dx), mutable_data_or_null<T>(grads.dgain), mutable_data_or_null<T>(grads.dbias));
  });
  return grads;
}

Tensor record(const char* op, const RowNorm& spec, const Tensor& x, const Tensor& gain, const Tensor& bias, const Shape& affine, const Rows& rows) {
  return autograd::record(op, {x, gain, bias}, rows.y, autograd::save({x, gain, rows.mean, rows.rstd}),
                          [op, spec, affine](autograd::Backward& b) { backward(op, spec, b, affine, true).give(b); });
}

/// Rows over the trailing axes, gain and bias by entry.
RowNorm trailing_rows(const char* op, const Tensor& x, const Shape& normalized_shape, const Tensor& gain, const Tensor& bias, double eps) {
  const Shape& shape = x.shape();
  if (!is_float(x.dtype())) fail_dtype(op, "f32 or f64", x.dtype());
  if (normalized_shape.rank() == 0) fail(op, "normalized_shape: expected at least one axis, got [] (x is {})", shape);
  const int leading = shape.rank() - normalized_shape.rank();
  if (leading < 0 || !std::equal(normalized_shape.begin(), normalized_shape.end(), shape.begin() + leading))
    fail(op, "x: expected a shape that ends in {}, got {}", normalized_shape, shape);
  RowNorm spec{.rows = 1, .width = normalized_shape.numel(), .eps = eps};
  for (int i = 0; i < leading; ++i) spec.rows *= shape[i];
  if (spec.rows > 0 && spec.width == 0) fail(op, "x: expected at least one element per row, got {}", shape);
  spec.measured = spec.affine_count = spec.width;
  check_companion(op, "gain", gain, normalized_shape, x);
  check_companion(op, "bias", bias, normalized_shape, x);
  check_eps(op, eps);
  return spec;
}

/// The C channels of each case in `groups` runs, gain and bias by channel.
RowNorm channel_rows(const char* op, const Tensor& x, int64_t groups, const Tensor& gain, const Tensor& bias, double eps) {
  const int64_t channels = x.size(1);
  int64_t space = 1;
  for (int i = 2; i < x.rank(); ++i) space *= x.size(i);
  check_companion(op, "gain", gain, {channels}, x);
  check_companion(op, "bias", bias, {channels}, x);
  check_eps(op, eps);
  RowNorm spec{.rows = x.size(0) * groups, .width = groups > 0 ? channels / groups * space : 0, .eps = eps};
  spec.measured = spec.width;
  if (gain.defined() || bias.defined()) spec.affine_count = channels, spec.affine_inner = space;
  return spec;
}

/// k = ceil(n p), where a product that is whole but for rounding (0.07 of 100) counts as whole.
int64_t measured_part(int64_t n, double p) {
  const double product = static_cast<double>(n) * p;
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(product * (1 - 1e-12))), std::min<int64_t>(n, 1), n);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& gain, const Tensor& bias, double eps) {
  const RowNorm spec = trailing_rows("layer_norm", x, normalized_shape, gain, bias, eps);
  return record("layer_norm", spec, x, gain, bias, normalized_shape, forward("layer_norm", spec, x, gain, bias));
}

Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& gain, const Tensor& bias, RMSNormOptions options) {
  if (!(options.partial > 0 && options.partial <= 1)) fail("rms_norm", "partial: expected a number in (0, 1], got {}", options.partial);
  const double machine = x.dtype() == DType::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  RowNorm spec = trailing_rows("rms_norm", x, normalized_shape, gain, bias, options.eps.value_or(machine));
  spec.centre = false;
  spec.measured = measured_part(spec.width, options.partial);
  return record("rms_norm", spec, x, gain, bias, normalized_shape, forward("rms_norm", spec, x, gain, bias));
}

Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& gain, const Tensor& bias, double eps) {
  if (!is_float(x.dtype())) fail_dtype("group_norm", "f32 or f64", x.dtype());
  if (x.rank() < 2) fail("group_norm", "x: expected [N, C] or [N, C, ...], got {}", x.shape());
  if (groups < 1 || x.size(1) % groups != 0)
    fail("group_norm", "groups: expected a number that divides the {} channels, got {} (x is {})", x.size(1), groups, x.shape());
  const RowNorm spec = channel_rows("group_norm", x, groups, gain, bias, eps);
  if (spec.rows > 0 && spec.width == 1) fail("group_norm", "expected more than one value per group, got x of {} in {} groups", x.shape(), groups);
  return record("group_norm", spec, x, gain, bias, {x.size(1)}, forward("group_norm", spec, x, gain, bias));
}

namespace {

/// Per channel, the means over the batch of the instances' means and variances. The kernel keeps rstd, not the variance; what taking it back loses is
/// small against var + eps, which is all that evaluation sees of it.
void move_by_instances(RunningStatistics& running, const RowNorm& spec, int64_t channels, const Rows& rows) {
  const NoGrad no_grad;
  const auto over_batch = [&](const Tensor& values) {
    return mean(reshape(values, {spec.rows / channels, channels}), {0}).cast(running.mean.dtype());
  };
  const Tensor rstd = rows.rstd.cast(DType::f64), without = eq(rstd, 0.0);  // without spread
  const auto number = [&](double value) { return Tensor::scalar(value, DType::f64, rstd.device()); };
  const Tensor about = maximum(reciprocal(square(where(without, number(1), rstd))) - spec.eps, number(0));  // a NaN stays
  const Tensor var = where(without, number(0), about);
  running.move(over_batch(sum(rows.mean.cast(DType::f64), {0})), over_batch(var),
               static_cast<double>(spec.width) / static_cast<double>(spec.width - 1));
}

}  // namespace

Tensor instance_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, Tensor running_mean, Tensor running_var, Tensor batches_tracked,
                     InstanceNormOptions options) {
  if (!is_float(x.dtype())) fail_dtype("instance_norm", "f32 or f64", x.dtype());
  if (x.rank() < 3) fail("instance_norm", "x: expected [N, C, L] or [N, C, ...], got {}", x.shape());
  const int64_t channels = x.size(1);
  const RowNorm spec = channel_rows("instance_norm", x, channels, gain, bias, options.eps);
  RunningStatistics running{.op = "instance_norm",
                            .mean = std::move(running_mean),
                            .var = std::move(running_var),
                            .batches_tracked = std::move(batches_tracked),
                            .momentum = options.momentum,
                            .cumulative = options.cumulative};
  running.check(x, {channels});
  if (!options.training && running.defined())  // given statistics: what batch norm does with them
    return batch_norm(x, gain, bias, running.mean, running.var, {}, {.training = false, .eps = options.eps});
  if (spec.rows > 0 && spec.width == 1) fail("instance_norm", "expected more than one value per instance, got x of {}", x.shape());
  const Rows rows = forward("instance_norm", spec, x, gain, bias);
  if (options.training && running.defined() && x.numel() > 0) move_by_instances(running, spec, channels, rows);
  return record("instance_norm", spec, x, gain, bias, {channels}, rows);
}

Tensor weight_norm(const Tensor& v, const Tensor& g) {
  if (!is_float(v.dtype())) fail_dtype("weight_norm", "f32 or f64", v.dtype());
  if (v.rank() < 1) fail("weight_norm", "v: expected [out, ...], got a scalar");
  if (!g.defined()) fail("weight_norm", "g: expected a tensor, got an undefined one");
  Shape norms = v.shape();
  for (int i = 1; i < norms.rank(); ++i) norms = norms.with(i, 1);
  check_companion("weight_norm", "g", g, norms, v, "v");

  // w = g v / ||v|| = (g / sqrt(n)) v / sqrt(mean v^2): the RMS norm of the rows with a gain per row.
  const int64_t out = v.size(0), width = out > 0 ? v.numel() / out : 0;
  const RowNorm spec{.rows = out, .width = width, .centre = false, .measured = width, .affine_count = out, .affine_inner = width, .eps = 0};
  const double factor = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(width, 1)));
  const Tensor gain = [&] {
    const NoGrad no_grad;
    return g * factor;
  }();
  const Rows rows = forward("weight_norm", spec, v, gain, Tensor());
  return autograd::record("weight_norm", {v, g}, rows.y, autograd::save({v, gain, rows.mean, rows.rstd}),
                          [spec, norms, factor](autograd::Backward& b) {
                            NormGradients grads = backward("weight_norm", spec, b, norms, false);
                            if (grads.dgain.defined()) grads.dgain = grads.dgain * factor;
                            grads.give(b);
                          });
}

}  // namespace lamina
