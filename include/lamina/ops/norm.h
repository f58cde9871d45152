#pragma once
// Normalisers as ops: y = (x - mean) / sqrt(var + eps) * gain + bias. Statistics are two-pass, var is biased unless said, eps is inside the root.

#include <lamina/core/tensor.h>

namespace lamina {

/// Layer normalisation (Ba, Kiros, Hinton 2016, eqs. 3-4) over the trailing axes.
/// x [..., normalized_shape]; gain and bias [normalized_shape] or undefined -> y like x. A row is one setting of the leading axes.
/// Gradients: x, gain, bias. Saves: x, gain, mean [R], rstd [R]. f32, f64.
/// Throws Error when x does not end in normalized_shape, normalized_shape is empty or has no element while x has rows, gain or bias differ from it,
/// or eps is negative.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& gain = Tensor(), const Tensor& bias = Tensor(), double eps = 1e-5);

struct BatchNormOptions {
  bool training = true;     // batch statistics; else the running ones
  double momentum = 0.1;    // running = (1 - momentum) running + momentum batch
  bool cumulative = false;  // momentum = 1 / count instead (PyTorch's momentum = None)
  bool unbiased = false;    // in training, normalise with the unbiased variance too (the paper's choice for batches of 4)
  double eps = 1e-5;
};

/// Batch normalisation (Ioffe & Szegedy 2015): x [N, C] or [N, C, ...]; statistics per channel over all other axes; gain and bias [C] or undefined.
/// running_mean and running_var [C] (or both undefined) are updated in training, outside the graph, by the batch mean and the *unbiased* batch
/// variance (PyTorch's rule); `batches_tracked` (i64 scalar or undefined) is incremented. In evaluation they normalise; without them batch statistics
/// do. A batch whose statistics are not finite (a NaN or inf in x) gives a result that is not finite but, unlike in PyTorch, leaves running
/// statistics and count alone, so that one bad batch does not spoil every later evaluation. Gradients: x, gain, bias. Saves: x, gain, mean [C], rstd
/// [C]. Throws Error for rank < 2, [C] mismatches, only one of the running statistics, `cumulative` without `batches_tracked`, a momentum outside [0,
/// 1], a negative eps, or batch statistics of one value per channel. An empty batch gives an empty result and leaves the statistics alone.
Tensor batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, Tensor running_mean, Tensor running_var, Tensor batches_tracked,
                  BatchNormOptions options = {});

}  // namespace lamina
