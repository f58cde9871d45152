#pragma once
// The untyped movers: they carry elements of 1, 4 or 8 bytes without looking at them.

#include <cstddef>
#include <cstdint>

#include <lamina/core/dtype.h>

#include "kernels/elementwise.h"

namespace lamina::kernels {

struct MoveKernels {
  virtual ~MoveKernels() = default;

  /// CUDA: either side may be host memory. A copy to the host waits for the device (and throws what went wrong there); the source of a copy from the
  /// host may be changed as soon as this returns.
  virtual void copy(int64_t bytes, const void* source, void* target) const = 0;
  /// n elements of `dtype`, all `value` (integers: truncated).
  virtual void fill(DType dtype, int64_t n, double value, void* target) const = 0;
  /// Float to integer truncates toward zero (saturating; NaN gives 0).
  virtual void cast(DType from, DType to, int64_t n, const void* source, void* target) const = 0;
  /// target = start, start + step, ...
  virtual void iota(DType dtype, int64_t n, double start, double step, void* target) const = 0;

  /// target, contiguous over space.sizes, from source with the element strides space.strides[0] (permutations, expansions).
  virtual void strided_copy(size_t element_size, const Broadcast& space, const void* source, void* target) const = 0;
  /// `rows` runs of `width` bytes between two pitches (concatenation, slices along an axis).
  virtual void copy_2d(int64_t rows, int64_t width_bytes, const void* source, int64_t source_pitch, void* target, int64_t target_pitch) const = 0;
  /// target[i] = source[index[i]], i < count, of `rows` rows of `row_bytes`. On the CPU the caller has checked the indices; on CUDA one that is out
  /// of range gives zeros and is reported (kernels/cuda/fault.h).
  virtual void gather_rows(int64_t count, int64_t rows, int64_t row_bytes, const void* source, const int64_t* index, void* target) const = 0;
};

}  // namespace lamina::kernels
