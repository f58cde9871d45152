#pragma once
// Elementwise ops. Binary ops broadcast as NumPy does; both operands must have one dtype (there is no implicit promotion) and device.
// Gradients of broadcast operands are summed back to their shape.

#include <lamina/core/tensor.h>

namespace lamina {

/// f32, f64 (differentiable); add, sub, mul, maximum and minimum also i64 and u8.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
/// Where equal, half of the gradient goes to each side. NaN wins.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// a^b. The gradient with respect to b is 0 where a = 0 (its limit for b > 0).
Tensor pow(const Tensor& a, const Tensor& b);

Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(const Tensor& a, double b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(const Tensor& a, double b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(const Tensor& a, double b);
Tensor operator/(double a, const Tensor& b);
Tensor operator-(const Tensor& a);
Tensor pow(const Tensor& a, double b);

/// f32, f64.
Tensor abs(const Tensor& x);  // gradient 0 at 0
Tensor exp(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor square(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor sign(const Tensor& x);   // gradient 0
Tensor floor(const Tensor& x);  // gradient 0
/// max(low, min(x, high)); the gradient passes where low <= x <= high. Throws Error for low > high.
Tensor clamp(const Tensor& x, double low, double high);

Tensor relu(const Tensor& x);  // gradient 0 at 0
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);  // 1 / (1 + exp(-x)), without overflow
enum class Gelu { exact, tanh };
/// x Phi(x) with the error function, or its tanh approximation (Hendrycks & Gimpel 2016).
Tensor gelu(const Tensor& x, Gelu form = Gelu::exact);
Tensor silu(const Tensor& x);      // x sigmoid(x)
Tensor softplus(const Tensor& x);  // log(1 + exp(x)), without overflow

/// Comparisons: u8 tensors of 0 and 1, any dtype, no gradient. NaN compares false except under ne.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, double b);
Tensor ne(const Tensor& a, double b);
Tensor lt(const Tensor& a, double b);
Tensor le(const Tensor& a, double b);
Tensor gt(const Tensor& a, double b);
Tensor ge(const Tensor& a, double b);

/// mask ? a : b, broadcasting all three; mask is u8. The side not taken gets gradient 0 even where the taken one is not finite.
Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);

}  // namespace lamina
