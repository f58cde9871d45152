#pragma once
// Matrix products.

#include <lamina/core/tensor.h>

namespace lamina {

struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
};

/// Matrix product over the last two axes, after the transpositions: [..., m, k] x [..., k, n] -> [..., m, n]. Leading axes broadcast; an operand of
/// rank 2 is shared by the whole batch (and its gradient summed over it). f32, f64. Both operands get gradients.
/// Throws Error for rank < 2, inner sizes that differ, batches that do not broadcast, or different dtypes.
Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions options = {});

/// y = x W^T + b: x [..., C], weight [O, C], bias [O] or undefined -> y [..., O]. PyTorch's nn.functional.linear.
/// Gradients: x, weight, bias. Saves: x, weight.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor());

}  // namespace lamina
