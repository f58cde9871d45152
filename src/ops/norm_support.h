#pragma once
// What the normaliser ops share: checks, the three gradients, running statistics.

#include <lamina/autograd/graph.h>
#include <lamina/core/tensor.h>

#include <cmath>
#include <utility>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina::ops {

/// An argument that goes with x (called so in errors): undefined, or of this shape and of x's dtype and device.
inline void check_companion(const char* op, const char* name, const Tensor& value, const Shape& shape, const Tensor& x, const char* x_name = "x") {
  if (!value.defined()) return;
  if (value.shape() != shape) fail(op, "{}: expected {}, got {} ({} is {})", name, shape, value.shape(), x_name, x.shape());
  if (value.dtype() != x.dtype()) fail(op, "{}: expected {} as {}, got {}", name, x.dtype(), x_name, value.dtype());
  if (!(value.device() == x.device())) fail(op, "{}: expected it on {} as {}, got {}", name, x.device(), x_name, value.device());
}

inline void check_eps(const char* op, double eps) {
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

/// The gradients of a normaliser's inputs x, gain, bias: buffers for those that are needed.
struct NormGradients {
  Tensor dx, dgain, dbias;

  NormGradients(autograd::Backward& b, const Tensor& x, const Shape& affine, bool has_bias = true) {
    if (b.needs(0)) dx = Tensor::empty(x.shape(), x.dtype(), x.device());
    if (b.needs(1)) dgain = Tensor::empty(affine, x.dtype(), x.device());
    if (has_bias && b.needs(2)) dbias = Tensor::empty(affine, x.dtype(), x.device());
  }
  void give(autograd::Backward& b) {
    if (dx.defined()) b.give(0, std::move(dx));
    if (dgain.defined()) b.give(1, std::move(dgain));
    if (dbias.defined()) b.give(2, std::move(dbias));
  }
};

/// The running statistics of a batch or instance norm; all undefined where there are none.
struct RunningStatistics {
  const char* op;
  Tensor mean, var, batches_tracked;
  double momentum = 0.1;
  bool cumulative = false;
  bool has_var = true;  // mean-only norms keep none

  bool defined() const { return mean.defined(); }

  void check(const Tensor& x, const Shape& channels) const {
    if (!has_var && var.defined()) fail(op, "running_var: expected none, a mean-only norm has no variance");
    if (has_var && mean.defined() != var.defined())
      fail(op, "{}: expected running_mean and running_var both or neither", mean.defined() ? "running_var" : "running_mean");
    check_companion(op, "running_mean", mean, channels, x);
    check_companion(op, "running_var", var, channels, x);
    if (batches_tracked.defined() && (batches_tracked.dtype() != DType::i64 || batches_tracked.numel() != 1))
      fail(op, "batches_tracked: expected one i64, got {} {}", batches_tracked.dtype(), batches_tracked.shape());
    if (batches_tracked.defined() && !(batches_tracked.device() == x.device()))
      fail(op, "batches_tracked: expected it on {} as x, got {}", x.device(), batches_tracked.device());
    if (!(momentum >= 0 && momentum <= 1)) fail(op, "momentum: expected a number in [0, 1], got {}", momentum);
    if (cumulative && mean.defined() && !batches_tracked.defined()) fail(op, "batches_tracked: a cumulative average needs the count of batches");
  }

  /// Moves them by a batch's [channels]; `unbiased` times its var is the unbiased variance. var undefined: there is none.
  void move(const Tensor& batch_mean, const Tensor& batch_var, double unbiased) {
    with_float(op, mean.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::norm<T>(mean.device())
          ->move_running({.channels = mean.numel(),
                          .momentum = momentum,
                          .cumulative = cumulative,
                          .unbiased = unbiased,
                          .batch_mean = batch_mean.data<T>(),
                          .batch_var = data_or_null<T>(batch_var),
                          .mean = mean.mutable_data<T>(),
                          .var = has_var ? var.mutable_data<T>() : nullptr,
                          .batches_tracked = mutable_data_or_null<int64_t>(batches_tracked)});
    });
  }
};

}  // namespace lamina::ops
