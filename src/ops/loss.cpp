#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/loss.h>

#include <algorithm>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina {

namespace {

/// A loss, and what its sum was divided by (a f64 scalar; undefined without reduction).
struct Reduced {
  Tensor y, divisor;
};

/// One loss per item to the result. Labels, where there are any, say which items count.
Reduced reduced(const Tensor& losses, Reduction reduction, const Tensor& labels = {}, int64_t ignore = 0) {
  if (reduction == Reduction::none) return {losses, {}};
  Reduced result{Tensor::empty({}, losses.dtype(), losses.device()), Tensor::empty({}, DType::f64, losses.device())};
  with_float("loss", losses.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::loss<T>(losses.device())
        ->reduce(reduction == Reduction::mean, losses.numel(), losses.data<T>(), labels.defined() ? labels.data<int64_t>() : nullptr, ignore,
                 result.y.mutable_data<T>(), result.divisor.mutable_data<double>());
  });
  return result;
}

/// The gradient of each item's loss, from that of the result.
Tensor item_gradients(const Tensor& dy, const Shape& items, const Tensor& divisor) {
  if (!divisor.defined()) return dy;
  Tensor dlosses = Tensor::empty(items, dy.dtype(), dy.device());
  with_float("loss", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::loss<T>(dy.device())->reduce_backward(dlosses.numel(), dy.data<T>(), divisor.data<double>(), dlosses.mutable_data<T>());
  });
  return dlosses;
}

/// Checks scores [..., K] against labels [...]. What labels on a GPU hold is for the kernels to check.
void check_labels(const char* op, const char* name, const Tensor& scores, const Tensor& labels, int64_t ignore) {
  if (scores.rank() < 1) fail(op, "{}: expected [..., K], got {}", name, scores.shape());
  if (!is_float(scores.dtype())) fail_dtype(op, "f32 or f64", scores.dtype());
  if (labels.dtype() != DType::i64) fail(op, "labels: expected class indices of i64, got {} {}", labels.dtype(), labels.shape());
  const Shape expected = scores.shape().without(-1);
  if (labels.shape() != expected) fail(op, "labels: expected {}, got {} ({} is {})", expected, labels.shape(), name, scores.shape());
  if (!(labels.device() == scores.device())) fail(op, "labels: expected them on {} as {}, got {}", scores.device(), name, labels.device());
  if (!labels.device().is_cpu()) return;
  const int64_t classes = scores.size(-1);
  const int64_t* label = labels.data<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i)
    if (label[i] != ignore && (label[i] < 0 || label[i] >= classes))
      fail(op, "labels: expected 0..{} (or {} to ignore), got {} at position {}", classes - 1, ignore, label[i], i);
}

void check_target(const char* op, const Tensor& x, const Tensor& target) {
  if (!is_float(x.dtype())) fail_dtype(op, "f32 or f64", x.dtype());
  if (target.shape() != x.shape()) fail(op, "target: expected {} as x, got {}", x.shape(), target.shape());
  if (target.dtype() != x.dtype()) fail(op, "target: expected {} as x, got {}", x.dtype(), target.dtype());
  if (!(target.device() == x.device())) fail(op, "target: expected it on {} as x, got {}", x.device(), target.device());
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& labels, CrossEntropyOptions options) {
  const double smoothing = options.label_smoothing;
  if (!(smoothing >= 0 && smoothing < 1)) fail("cross_entropy", "label_smoothing: expected a number in [0, 1), got {}", smoothing);
  check_labels("cross_entropy", "logits", logits, labels, options.ignore_index);
  const int64_t rows = labels.numel(), classes = logits.size(-1);
  Tensor losses = Tensor::empty(labels.shape(), logits.dtype(), logits.device());
  Tensor lse = Tensor::empty({rows}, logits.dtype(), logits.device());
  with_float("cross_entropy", logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::softmax<T>(logits.device())
        ->cross_entropy(rows, classes, logits.data<T>(), labels.data<int64_t>(), options.ignore_index, smoothing, losses.mutable_data<T>(),
                        lse.mutable_data<T>());
  });
  const Reduced result = reduced(losses, options.reduction, labels, options.ignore_index);
  return autograd::record(
      "cross_entropy", {logits}, result.y, autograd::save({logits, labels, lse}), [options, divisor = result.divisor](autograd::Backward& b) {
        const Tensor &scores = b.saved(0), &classes_of = b.saved(1);
        const Tensor dlosses = item_gradients(b.dy(), classes_of.shape(), divisor);
        Tensor dlogits = Tensor::empty(scores.shape(), scores.dtype(), scores.device());
        with_float("cross_entropy", scores.dtype(), [&](auto zero) {
          using T = decltype(zero);
          kernels::softmax<T>(scores.device())
              ->cross_entropy_backward(classes_of.numel(), scores.size(-1), scores.data<T>(), b.saved(2).data<T>(), classes_of.data<int64_t>(),
                                       options.ignore_index, options.label_smoothing, dlosses.data<T>(), dlogits.mutable_data<T>());
        });
        b.give(0, std::move(dlogits));
      });
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& labels, int64_t ignore_index, Reduction reduction) {
  check_labels("nll_loss", "log_probs", log_probs, labels, ignore_index);
  const Shape shape = log_probs.shape();
  Tensor losses = Tensor::empty(labels.shape(), log_probs.dtype(), log_probs.device());
  with_float("nll_loss", log_probs.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::loss<T>(log_probs.device())
        ->nll(labels.numel(), shape[-1], log_probs.data<T>(), labels.data<int64_t>(), ignore_index, losses.mutable_data<T>());
  });
  const Reduced result = reduced(losses, reduction, labels, ignore_index);
  return autograd::record(
      "nll_loss", {log_probs}, result.y, autograd::save({labels}), [shape, ignore_index, divisor = result.divisor](autograd::Backward& b) {
        const Tensor& indices = b.saved(0);
        const Tensor dlosses = item_gradients(b.dy(), indices.shape(), divisor);
        Tensor dx = Tensor::empty(shape, dlosses.dtype(), dlosses.device());
        with_float("nll_loss", dlosses.dtype(), [&](auto zero) {
          using T = decltype(zero);
          kernels::loss<T>(dlosses.device())
              ->nll_backward(indices.numel(), shape[-1], dlosses.data<T>(), indices.data<int64_t>(), ignore_index, dx.mutable_data<T>());
        });
        b.give(0, std::move(dx));
      });
}

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_target("mse_loss", x, target);
  const double divisor = reduction == Reduction::mean ? static_cast<double>(std::max<int64_t>(x.numel(), 1)) : 1.0;
  Tensor difference, y;
  {
    const NoGrad no_grad;
    difference = x - target;
    if (reduction == Reduction::none)
      y = square(difference);
    else
      with_float("mse_loss", x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        Tensor sum = Tensor::zeros({}, DType::f64, x.device());
        kernels::reduce<T>(x.device())->sum_of_squares(x.numel(), difference.data<T>(), sum.mutable_data<double>());
        y = (sum / divisor).cast(x.dtype());
      });
  }
  return autograd::record("mse_loss", {x, target}, y, autograd::save({difference}), [reduction, divisor](autograd::Backward& b) {
    const Tensor& d = b.saved(0);
    Tensor dx = reduction == Reduction::none ? d * b.dy() * 2.0 : d * (b.dy().cast(DType::f64) * 2.0 / divisor).cast(d.dtype());
    if (b.needs(1)) b.give(1, -dx);
    b.give(0, std::move(dx));
  });
}

Tensor bce_with_logits(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_target("bce_with_logits", x, target);
  Tensor losses;
  {
    const NoGrad no_grad;
    // The small term last, or softplus would round it away where x - x target cancels.
    losses = relu(x) - x * target + log1p(exp(-abs(x)));
  }
  const Reduced result = reduced(losses, reduction);
  return autograd::record("bce_with_logits", {x, target}, result.y, autograd::save({x, target}), [divisor = result.divisor](autograd::Backward& b) {
    const Tensor& logits = b.saved(0);
    const Tensor dlosses = item_gradients(b.dy(), logits.shape(), divisor);
    if (b.needs(0)) b.give(0, (sigmoid(logits) - b.saved(1)) * dlosses);
    if (b.needs(1)) b.give(1, -(logits * dlosses));
  });
}

}  // namespace lamina
