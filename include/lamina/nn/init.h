#pragma once
// Initialisers: how a parameter's first value is drawn. fan_in and fan_out of a weight [out, in, space...] are in * space and out * space.

#include <string>

#include <lamina/core/random.h>
#include <lamina/core/tensor.h>

namespace lamina::nn {

/// A distribution by kind and two numbers. Values are always drawn on the host.
struct Init {
  enum class Kind { constant, uniform, normal, orthogonal };
  Kind kind = Kind::constant;
  double a = 0;           // constant: the value; uniform: the bound of U(-a, a); normal: the standard deviation; orthogonal: the gain
  int64_t blocks = 1;     // orthogonal: row blocks drawn separately (the gates of a recurrent weight)
  int64_t zero_row = -1;  // this row of the first axis is 0 (the padding of an embedding); -1: none

  bool is_constant() const { return kind == Kind::constant; }
};

/// The rules of fans throw Error for a weight of rank < 2; with a fan of 0 they draw nothing but zeros.
namespace init {

Init constant(double value);
Init zeros();
Init ones();
Init uniform(double bound);  // U(-bound, bound)
Init normal(double std);
/// Glorot & Bengio 2010, eq. 16: bound gain sqrt(6 / (fan_in + fan_out)), or that variance.
Init xavier_uniform(const Shape& weight, double gain = 1.0);
Init xavier_normal(const Shape& weight, double gain = 1.0);
/// He et al. 2015 for ReLU: std sqrt(2 / fan_in).
Init he_uniform(const Shape& weight);
Init he_normal(const Shape& weight);
/// PyTorch's default of Linear and convolutions (kaiming_uniform with a = sqrt(5)): U(-1/sqrt(fan_in), 1/sqrt(fan_in)).
Init pytorch_default(const Shape& weight);
/// Saxe et al. 2014: orthonormal rows or columns (QR of a normal matrix, sign-corrected), times gain. Rank >= 2, flattened to [out, rest].
Init orthogonal(double gain = 1.0, int64_t blocks = 1);

/// "pytorch", "xavier_uniform", "xavier_normal", "he_uniform", "he_normal", "orthogonal", "normal:0.01", "uniform:0.1", "constant:0.5", "zeros",
/// "ones". Throws InputError listing the names, and for a rule of fans or "orthogonal" on a shape of rank < 2.
Init parse(const std::string& text, const Shape& weight);

}  // namespace init

/// A fresh tensor on the host, filled as `init` says. The values depend on `rng`, the shape and the dtype alone.
/// Throws Error for an orthogonal shape of rank < 2 or rows that do not divide into the blocks.
Tensor draw(const Init& init, const Shape& shape, DType dtype, Rng rng);

}  // namespace lamina::nn
