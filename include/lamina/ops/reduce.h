#pragma once
// Reductions over any axes (negative axes count from the end; an empty list means all). f32 and f64 unless said. `keep` keeps reduced axes with
// size 1.

#include <vector>

#include <lamina/core/tensor.h>

namespace lamina {

using Axes = std::vector<int>;

Tensor sum(const Tensor& x, const Axes& axes = {}, bool keep = false);   // 0 over nothing
Tensor mean(const Tensor& x, const Axes& axes = {}, bool keep = false);  // NaN over nothing
/// Two-pass variance, divided by count - correction (1: unbiased, as in PyTorch; 0: biased). NaN where count <= correction.
Tensor var(const Tensor& x, const Axes& axes = {}, int correction = 1, bool keep = false);
/// The gradient is shared equally among equal extremes. NaN wins. Throws Error over nothing.
Tensor max(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor min(const Tensor& x, const Axes& axes = {}, bool keep = false);
/// Euclidean norm; its gradient at 0 is 0.
Tensor norm(const Tensor& x, const Axes& axes = {}, bool keep = false);

/// Index (i64) of the first largest (smallest) element along an axis; a NaN wins. No gradient: the result never requires one.
Tensor argmax(const Tensor& x, int axis = -1, bool keep = false);
Tensor argmin(const Tensor& x, int axis = -1, bool keep = false);

/// x summed over the axes along which `shape` was broadcast to x's shape; the adjoint of expand().
Tensor sum_to(const Tensor& x, const Shape& shape);

/// Whether every element is finite (waits for the device).
bool all_finite(const Tensor& x);

}  // namespace lamina
