#pragma once
// Softmax along one axis, the maximum subtracted first. f32, f64. A row of -inf only gives NaN, as in PyTorch.

#include <lamina/core/tensor.h>

namespace lamina {

Tensor softmax(const Tensor& x, int axis = -1);
Tensor log_softmax(const Tensor& x, int axis = -1);

}  // namespace lamina
