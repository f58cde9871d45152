#pragma once
// Losses. Means are over the counted items; with none counted (an empty batch, or all ignored) the loss is 0 and so is its gradient.

#include <lamina/core/tensor.h>

namespace lamina {

enum class Reduction { none, mean, sum };

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0.0;  // in [0, 1)
  Reduction reduction = Reduction::mean;
};

/// -log softmax(logits)[label], fused and stable: logits [N, K] (or [..., K]), labels i64 [N] ([...]) of class indices.
/// With smoothing s the target is (1 - s) one_hot + s / K (PyTorch's definition). Gradient: logits. Saves: logits, labels, log-sum-exp [N].
/// Throws Error naming the label and its position when a label is neither ignore_index nor in 0..K-1; of labels on a GPU the next copy to the host or
/// synchronize() does, and until then such an item's loss and gradient are 0.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, CrossEntropyOptions options = {});

/// The same from log-probabilities: -log_probs[label]. Gradient: log_probs. Saves: labels.
Tensor nll_loss(const Tensor& log_probs, const Tensor& labels, int64_t ignore_index = -100, Reduction reduction = Reduction::mean);

/// (x - target)^2; shapes must be equal (nothing broadcasts). Gradients: x, target. Saves: x - target.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

/// Binary cross-entropy of sigmoid(x) against target in [0, 1], stable for large |x|: max(x,0) - x target + log(1 + exp(-|x|)).
/// Shapes must be equal. Gradients: x, target. Saves both.
Tensor bce_with_logits(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

}  // namespace lamina
