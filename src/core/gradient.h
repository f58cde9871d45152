#pragma once
// The gradient of a leaf, which may be held as its factors: the weight gradient of a linear layer is dy^T x, and for a small batch dy and x are far
// smaller than the weight. As long as nobody looks, the product is not formed: the optimiser's fused update computes it on the fly and never writes
// it.

#include <vector>

#include <lamina/core/tensor.h>

namespace lamina::detail {

/// One product dy^T x: dy [N, O], x [N, C], gradient [O, C]. Copies that nobody else can change.
struct Factors {
  Tensor dy, x;
};

/// dense, or scale * (sum of products), or nothing. Never both.
struct Gradient {
  Tensor dense;
  std::vector<Factors> factors;
  double scale = 1;

  bool defined() const { return dense.defined() || !factors.empty(); }
  int64_t rows() const;  // of all factors together
};

/// Rows up to which factors stay factors: beyond, forming the product costs less than walking the rows once per element of the update.
constexpr int64_t max_factor_rows = 16;

/// Whether a gradient [O, C] from N rows is better held as factors. Never on a GPU: the product is in its cache when the update reads it, and one
/// launch serves all parameters there, while factors would want one each, and copies of dy and x.
bool worth_factoring(int64_t rows, const Shape& weight, Device device);

/// Forms the product, if it is not formed yet; the result is `gradient.dense`.
void materialise(Gradient& gradient, const Shape& shape);

/// All of accumulate() that needs memory; changes no value.
void prepare(Gradient& into, Gradient& more, const Shape& shape);
/// into += more, in place where nobody else holds the buffer.
void accumulate(Gradient& into, Gradient more, const Shape& shape);
Tensor accumulated(Tensor sum, const Tensor& more);

/// The tensor itself if nobody else can reach its buffer, else a copy.
Tensor owned(Tensor tensor);

/// sum of squares of all elements, in double; from the factors it is the sum over pairs of rows <dy_i, dy_j> <x_i, x_j>.
double sum_of_squares(const Gradient& gradient);
/// Of all of them; waits for a GPU once.
double sum_of_squares(const std::vector<const Gradient*>& gradients);
/// Multiplies by a number.
void rescale(Gradient& gradient, double factor);
/// Whether every element is finite.
bool all_finite(Gradient& gradient, const Shape& shape);

}  // namespace lamina::detail
