// Batch norm: the channel kernel.

#include <lamina/ops/norm.h>

#include "kernels/kernels.h"
#include "ops/norm_support.h"

namespace lamina {

using namespace ops;

namespace {

kernels::ChannelNorm batch_norm_channels(const Tensor& x, const BatchNormOptions& options) {
  if (x.rank() < 2) fail("batch_norm", "x: expected [N, C] or [N, C, ...], got {}", x.shape());
  if (!is_float(x.dtype())) fail_dtype("batch_norm", "f32 or f64", x.dtype());
  kernels::ChannelNorm spec{
      .batch = x.size(0), .channels = x.size(1), .unbiased = options.unbiased, .divide = !options.mean_only, .eps = options.eps};
  for (int i = 2; i < x.rank(); ++i) spec.space *= x.size(i);
  return spec;
}

/// What makes the variance that the kernel gave the unbiased one.
double to_unbiased(const kernels::ChannelNorm& spec) {
  const double m = static_cast<double>(spec.batch * spec.space);
  return spec.unbiased ? 1.0 : m / (m - 1);
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, Tensor running_mean, Tensor running_var, Tensor batches_tracked,
                  BatchNormOptions options) {
  const kernels::ChannelNorm spec = batch_norm_channels(x, options);
  const Shape channels{spec.channels};
  check_companion("batch_norm", "gain", gain, channels, x);
  check_companion("batch_norm", "bias", bias, channels, x);
  RunningStatistics running{.op = "batch_norm",
                            .mean = std::move(running_mean),
                            .var = std::move(running_var),
                            .batches_tracked = std::move(batches_tracked),
                            .momentum = options.momentum,
                            .cumulative = options.cumulative,
                            .has_var = spec.divide};
  running.check(x, channels);
  check_eps("batch_norm", options.eps);
  const bool given = !options.training && running.defined();
  const int64_t values = spec.batch * spec.space;
  if (!given && values == 1)
    fail("batch_norm", "expected more than one value per channel {}, got x of {}", options.training ? "in training" : "for batch statistics",
         x.shape());

  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  // Of the running mean a copy, so that a later step in training may change it before this graph runs backward.
  Tensor mean = given ? running.mean.clone() : Tensor::empty(channels, x.dtype(), x.device());
  Tensor rstd = Tensor::empty(channels, x.dtype(), x.device());
  with_float("batch_norm", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto& norm = kernels::norm<T>(x.device());
    Tensor shift;  // what the mean's rounding lost
    if (given) {
      norm->channel_rstd(spec, data_or_null<T>(running.var), rstd.mutable_data<T>());
    } else if (values > 0) {
      shift = Tensor::empty(channels, x.dtype(), x.device());
      Tensor var = spec.divide ? Tensor::empty(channels, x.dtype(), x.device()) : Tensor();
      norm->channel_statistics(spec, x.data<T>(), mean.mutable_data<T>(), shift.mutable_data<T>(), mutable_data_or_null<T>(var),
                               rstd.mutable_data<T>());
      if (options.training && running.defined()) running.move(mean, var, to_unbiased(spec));
    } else {
      mean.fill_(0);
      rstd.fill_(1);
    }
    norm->channel_forward(spec, x.data<T>(), mean.data<T>(), data_or_null<T>(shift), rstd.data<T>(), data_or_null<T>(gain), data_or_null<T>(bias),
                          y.mutable_data<T>());
  });
  return autograd::record("batch_norm", {x, gain, bias}, y, autograd::save({x, gain, mean, rstd}), [spec, given](autograd::Backward& b) {
    const Tensor& input = b.saved(0);
    NormGradients grads(b, input, {spec.channels});
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
