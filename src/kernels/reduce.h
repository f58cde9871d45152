#pragma once
// Reductions. Any set of axes becomes at most a few passes over [outer, axis, inner] blocks.

#include <cstdint>

namespace lamina::kernels {

enum class Reduction : uint8_t { sum, max, min };

/// Sums keep their order for every thread count (fixed chunks, combined in order) and accumulate in double, so that those of many or of equal terms
/// are right too (pitfall A23: the mean of 20,000,000 ones is 1). The CPU adds f32 terms in fours before that, which must not overflow. max and min
/// propagate NaN; over an empty axis the ops refuse them.
template <class T>
struct ReduceKernels {
  virtual ~ReduceKernels() = default;

  /// y[outer, inner] = reduction of x[outer, axis, inner] over the middle. axis = 0 gives 0 for sums.
  virtual void reduce(Reduction op, int64_t outer, int64_t axis, int64_t inner, const T* x, T* y) const = 0;

  /// Index of the first largest (smallest) element along the middle; a NaN wins.
  virtual void arg_reduce(bool largest, int64_t outer, int64_t axis, int64_t inner, const T* x, int64_t* y) const = 0;

  /// *sum += sum of x_i^2, accumulated in double. The result stays in the device's memory, as that of all_finite does.
  virtual void sum_of_squares(int64_t n, const T* x, double* sum) const = 0;
  /// *finite = 0 if an element is not finite; else it stays as it is.
  virtual void all_finite(int64_t n, const T* x, uint8_t* finite) const = 0;
};

}  // namespace lamina::kernels
