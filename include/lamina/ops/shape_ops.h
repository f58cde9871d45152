#pragma once
// Ops that move elements. All dtypes; differentiable for f32 and f64. reshape and slices along axis 0 share memory, the others copy.
// An axis may be negative: it counts from the end. Every function throws Error for an axis out of range.

#include <initializer_list>
#include <vector>

#include <lamina/core/tensor.h>

namespace lamina {

/// One size may be -1: it is computed from the others. Throws Error when the numbers of elements differ, or no size fits the -1.
Tensor reshape(const Tensor& x, std::initializer_list<int64_t> sizes);
Tensor reshape(const Tensor& x, const std::vector<int64_t>& sizes);
Tensor reshape(const Tensor& x, const Shape& shape);
/// Axes first..last become one. Throws Error when first comes after last.
Tensor flatten(const Tensor& x, int first = 0, int last = -1);
Tensor squeeze(const Tensor& x, int axis);  // throws Error unless the size is 1
Tensor unsqueeze(const Tensor& x, int axis);

/// y's axis i is x's axis axes[i]. Throws Error unless every axis is named once.
Tensor permute(const Tensor& x, const std::vector<int>& axes);
/// Swaps two axes (the last two by default).
Tensor transpose(const Tensor& x, int a = -2, int b = -1);
/// Broadcast to a shape, as a copy; the gradient is summed back. Throws Error when it does not broadcast.
Tensor expand(const Tensor& x, const Shape& shape);

/// Joins along an axis. Throws Error for no parts, or shapes or dtypes that differ in more than the size of that axis.
Tensor concat(const std::vector<Tensor>& parts, int axis = 0);
/// Joins along a new axis. Throws Error for no parts, or parts that differ in shape or dtype.
Tensor stack(const std::vector<Tensor>& parts, int axis = 0);
/// Elements begin..end-1 of an axis; negative positions count from the end, end = max means to the end. Throws Error when out of range or begin >
/// end.
Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end = INT64_MAX);
/// x[index] along an axis, which disappears; a negative index counts from the end. Throws Error when it is out of range.
Tensor select(const Tensor& x, int axis, int64_t index);
/// Parts of `size` along an axis; the last may be smaller. Throws Error for size < 1.
std::vector<Tensor> split(const Tensor& x, int64_t size, int axis = 0);

// Indices on a GPU are looked at there: one out of range gives zeros, and an Error at the next copy to the host or synchronize(), which names the
// first.

/// Rows of axis `axis` picked by an i64 vector; repeated indices add up in the gradient. Throws Error naming the position of an index out of range.
Tensor index_select(const Tensor& x, int axis, const Tensor& index);
/// PyTorch's gather: index has x's rank, y[..i..] = x[..index[..i..]..] along `axis`. Throws Error when index is not i64, is
/// larger than x along another axis, or holds a position out of range (which is named).
Tensor gather(const Tensor& x, int axis, const Tensor& index);
/// Rows of a table [V, C] picked by ids (i64, any shape) -> [..., C]. `padding` (or -1): that row gets no gradient.
/// Throws Error when ids are not i64 or out of range (the position is named), the table is not [V, C], or there is no row `padding`.
Tensor embedding(const Tensor& ids, const Tensor& table, int64_t padding = -1);
/// i64 [...] -> [..., classes] of `dtype`. Throws Error for an index outside of 0..classes-1 (the position is named).
Tensor one_hot(const Tensor& index, int64_t classes, DType dtype = DType::f32);

}  // namespace lamina
