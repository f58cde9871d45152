#pragma once
// Indexed access that does arithmetic or needs an element type.

#include <cstdint>

namespace lamina::kernels {

/// All T: float, double; gather also int64_t and uint8_t.
template <class T>
struct IndexKernels {
  virtual ~IndexKernels() = default;

  /// target[rows, width] = sums of the source rows with that index, over zeros: target[index[i]] += source[i]. Deterministic for every thread count.
  virtual void scatter_add_rows(int64_t count, int64_t width, const T* source, const int64_t* index, int64_t rows, T* target) const = 0;

  /// Along the middle axis, PyTorch's gather: y[o,j,i] = x[o, index[o,j,i], i]; x is [outer, axis, inner], y and index [outer, count, inner].
  virtual void gather(int64_t outer, int64_t axis, int64_t count, int64_t inner, const T* x, const int64_t* index, T* y) const = 0;
  /// Its adjoint: dx [outer, axis, inner], overwritten: zeros plus the sums of dy at index.
  virtual void scatter_add(int64_t outer, int64_t axis, int64_t count, int64_t inner, const T* dy, const int64_t* index, T* dx) const = 0;
};

/// The position of the first index outside [0, limit); `count` when there is none. (Host memory.)
int64_t first_out_of_range(int64_t count, const int64_t* index, int64_t limit);

}  // namespace lamina::kernels
