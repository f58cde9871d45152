#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/loss.h>

#include <algorithm>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina {

namespace {

/// What a loss divides its sum by; 1 over nothing, where the sum is 0.
double divisor(Reduction reduction, int64_t counted) {
  return reduction == Reduction::mean ? static_cast<double>(std::max<int64_t>(counted, 1)) : 1.0;
}

/// One loss per item to the result, summed in double.
Tensor reduced(const Tensor& losses, Reduction reduction, int64_t counted) {
  if (reduction == Reduction::none) return losses;
  double sum = 0;
  with_float("loss", losses.dtype(), [&](auto zero) {
    const auto* values = losses.data<decltype(zero)>();
    for (int64_t i = 0; i < losses.numel(); ++i) sum += values[i];
  });
  return Tensor::scalar(sum / divisor(reduction, counted), losses.dtype(), losses.device());
}

/// The gradient of each item's loss, from that of the result.
Tensor item_gradients(const Tensor& dy, const Shape& items, Reduction reduction, int64_t counted) {
  if (reduction == Reduction::none) return dy;
  return Tensor::full(items, dy.item() / divisor(reduction, counted), dy.dtype(), dy.device());
}

/// Checks scores [..., K] against labels [...]; returns how many labels count.
int64_t check_labels(const char* op, const char* name, const Tensor& scores, const Tensor& labels, int64_t ignore) {
  if (scores.rank() < 1) fail(op, "{}: expected [..., K], got {}", name, scores.shape());
  if (!is_float(scores.dtype())) fail_dtype(op, "f32 or f64", scores.dtype());
  if (labels.dtype() != DType::i64) fail(op, "labels: expected class indices of i64, got {} {}", labels.dtype(), labels.shape());
  const Shape expected = scores.shape().without(-1);
  if (labels.shape() != expected) fail(op, "labels: expected {}, got {} ({} is {})", expected, labels.shape(), name, scores.shape());
  if (!(labels.device() == scores.device())) fail(op, "labels: expected them on {} as {}, got {}", scores.device(), name, labels.device());
  const int64_t classes = scores.size(-1);
  const int64_t* label = labels.data<int64_t>();
  int64_t counted = 0;
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (label[i] == ignore) continue;
    if (label[i] < 0 || label[i] >= classes)
      fail(op, "labels: expected 0..{} (or {} to ignore), got {} at position {}", classes - 1, ignore, label[i], i);
    ++counted;
  }
  return counted;
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
  const int64_t counted = check_labels("cross_entropy", "logits", logits, labels, options.ignore_index);
  const int64_t rows = labels.numel(), classes = logits.size(-1);
  Tensor losses = Tensor::empty(labels.shape(), logits.dtype(), logits.device());
  Tensor lse = Tensor::empty({rows}, logits.dtype(), logits.device());
  if (counted == 0)
    losses.fill_(0);
  else
    with_float("cross_entropy", logits.dtype(), [&](auto zero) {
      using T = decltype(zero);
      kernels::softmax<T>(logits.device())
          ->cross_entropy(rows, classes, logits.data<T>(), labels.data<int64_t>(), options.ignore_index, smoothing, losses.mutable_data<T>(),
                          lse.mutable_data<T>());
    });
  return autograd::record("cross_entropy", {logits}, reduced(losses, options.reduction, counted), autograd::save({logits, labels, lse}),
                          [options, counted](autograd::Backward& b) {
                            const Tensor &scores = b.saved(0), &classes_of = b.saved(1);
                            if (counted == 0) return b.give(0, Tensor::zeros(scores.shape(), scores.dtype(), scores.device()));
                            const Tensor dlosses = item_gradients(b.dy(), classes_of.shape(), options.reduction, counted);
                            Tensor dlogits = Tensor::empty(scores.shape(), scores.dtype(), scores.device());
                            with_float("cross_entropy", scores.dtype(), [&](auto zero) {
                              using T = decltype(zero);
                              kernels::softmax<T>(scores.device())
                                  ->cross_entropy_backward(classes_of.numel(), scores.size(-1), scores.data<T>(), b.saved(2).data<T>(),
                                                           classes_of.data<int64_t>(), options.ignore_index, options.label_smoothing,
                                                           dlosses.data<T>(), dlogits.mutable_data<T>());
                            });
                            b.give(0, std::move(dlogits));
                          });
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& labels, int64_t ignore_index, Reduction reduction) {
  const int64_t counted = check_labels("nll_loss", "log_probs", log_probs, labels, ignore_index);
  const Shape shape = log_probs.shape();
  // Calls pick(row, position of the row's label in log_probs) for each row that counts.
  const auto for_each_label = [classes = shape[-1], ignore_index](const Tensor& indices, auto&& pick) {
    const int64_t* label = indices.data<int64_t>();
    for (int64_t row = 0; row < indices.numel(); ++row)
      if (label[row] != ignore_index) pick(row, row * classes + label[row]);
  };
  Tensor losses = Tensor::zeros(labels.shape(), log_probs.dtype(), log_probs.device());
  with_float("nll_loss", log_probs.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* scores = log_probs.data<T>();
    T* loss = losses.mutable_data<T>();
    for_each_label(labels, [&](int64_t row, int64_t at) { loss[row] = -scores[at]; });
  });
  return autograd::record("nll_loss", {log_probs}, reduced(losses, reduction, counted), autograd::save({labels}),
                          [for_each_label, shape, reduction, counted](autograd::Backward& b) {
                            const Tensor& indices = b.saved(0);
                            const Tensor dlosses = item_gradients(b.dy(), indices.shape(), reduction, counted);
                            Tensor dx = Tensor::zeros(shape, dlosses.dtype(), dlosses.device());
                            with_float("nll_loss", dlosses.dtype(), [&](auto zero) {
                              using T = decltype(zero);
                              const T* dloss = dlosses.data<T>();
                              T* out = dx.mutable_data<T>();
                              for_each_label(indices, [&](int64_t row, int64_t at) { out[at] = -dloss[row]; });
                            });
                            b.give(0, std::move(dx));
                          });
}

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  check_target("mse_loss", x, target);
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
        y = (sum / divisor(reduction, x.numel())).cast(x.dtype());
      });
  }
  return autograd::record("mse_loss", {x, target}, y, autograd::save({difference}), [reduction](autograd::Backward& b) {
    const Tensor& d = b.saved(0);
    Tensor dx = reduction == Reduction::none ? d * b.dy() * 2.0 : d * (2.0 * b.dy().item() / divisor(reduction, d.numel()));
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
  return autograd::record("bce_with_logits", {x, target}, reduced(losses, reduction, x.numel()), autograd::save({x, target}),
                          [reduction](autograd::Backward& b) {
                            const Tensor& logits = b.saved(0);
                            const Tensor dlosses = item_gradients(b.dy(), logits.shape(), reduction, logits.numel());
                            if (b.needs(0)) b.give(0, (sigmoid(logits) - b.saved(1)) * dlosses);
                            if (b.needs(1)) b.give(1, -(logits * dlosses));
                          });
}

}  // namespace lamina
