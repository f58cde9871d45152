#include <lamina/nn/init.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <lamina/core/parallel.h>

#include "core/format.h"

namespace lamina::nn {

namespace {

constexpr const char* names =
    "pytorch, xavier_uniform, xavier_normal, he_uniform, he_normal, orthogonal, normal:STD, uniform:BOUND, constant:VALUE, zeros, ones";

struct Fans {
  double in, out;
};

Fans fans(const Shape& weight) {
  if (weight.rank() < 2) fail("init", "a fan needs a weight of rank >= 2, got {}", weight);
  double space = 1;
  for (int axis = 2; axis < weight.rank(); ++axis) space *= static_cast<double>(weight.size(axis));
  return {static_cast<double>(weight.size(1)) * space, static_cast<double>(weight.size(0)) * space};
}

// numerator / fan, 0 for a weight without elements.
double over(double numerator, double fan) { return fan > 0 ? numerator / fan : 0.0; }

Init of(Init::Kind kind, double a) { return {.kind = kind, .a = a}; }

double dot(int64_t n, const double* x, const double* y) {
  double sums[8] = {};  // independent chains, which the compiler may keep in vectors
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) sums[k] += x[i + k] * y[i + k];
  for (; i < n; ++i) sums[0] += x[i] * y[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// y -= beta v (v . y): one column under the reflection I - beta v v^T.
void reflect(int64_t n, const double* v, double beta, double* y) {
  const double scale = beta * dot(n, v, y);
  for (int64_t i = 0; i < n; ++i) y[i] -= scale * v[i];
}

/// n >= m: m orthonormal columns of length n, column after column, from an n x m normal matrix by Householder reflections (Golub & Van Loan, 5.2).
/// Multiplying column j by the sign of R_jj makes the distribution uniform (Mezzadri 2007).
std::vector<double> orthonormal_columns(int64_t n, int64_t m, Rng& rng) {
  std::vector<double> a = randn({n * m}, rng, DType::f64).to_vector<double>();
  std::vector<double> beta(static_cast<size_t>(m)), sign(static_cast<size_t>(m));
  const auto column = [n](std::vector<double>& matrix, int64_t j) { return matrix.data() + j * n; };
  const auto grain = [](int64_t rows) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(rows, 1)); };
  for (int64_t k = 0; k < m; ++k) {
    double* v = column(a, k) + k;  // becomes the reflection's vector
    const double norm = std::sqrt(dot(n - k, v, v));
    const double alpha = v[0] > 0 ? -norm : norm;  // R_kk; away from v[0], so that nothing cancels
    v[0] -= alpha;
    const double length = dot(n - k, v, v);
    beta[static_cast<size_t>(k)] = length > 0 ? 2 / length : 0.0;
    sign[static_cast<size_t>(k)] = alpha < 0 ? -1.0 : 1.0;
    parallel_for(m - k - 1, grain(n - k), [&](int64_t begin, int64_t end) {
      for (int64_t j = k + 1 + begin; j < k + 1 + end; ++j) reflect(n - k, v, beta[static_cast<size_t>(k)], column(a, j) + k);
    });
  }
  std::vector<double> q(a.size());
  parallel_for(m, grain(n * m), [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      double* y = column(q, j);
      y[j] = sign[static_cast<size_t>(j)];
      for (int64_t k = j; k >= 0; --k) reflect(n - k, column(a, k) + k, beta[static_cast<size_t>(k)], y + k);
    }
  });
  return q;
}

/// Fills `values` (row-major [rows, columns]) with orthonormal rows or columns, whichever are fewer, times gain.
void orthogonal_block(int64_t rows, int64_t columns, double gain, Rng& rng, double* values) {
  const int64_t n = std::max(rows, columns), m = std::min(rows, columns);
  const std::vector<double> q = orthonormal_columns(n, m, rng);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) values[i * columns + j] = gain * q[static_cast<size_t>(rows >= columns ? j * n + i : i * n + j)];
}

Tensor orthogonal_tensor(const Init& init, const Shape& shape, DType dtype, Rng& rng) {
  if (shape.rank() < 2) fail("init", "orthogonal needs a weight of rank >= 2, got {}", shape);
  if (init.blocks < 1 || shape.size(0) % init.blocks != 0)
    fail("init", "orthogonal: {} rows do not divide into {} blocks", shape.size(0), init.blocks);
  Tensor result = Tensor::zeros(shape, DType::f64);
  if (shape.numel() == 0) return result.cast(dtype);
  const int64_t rows = shape.size(0) / init.blocks, columns = shape.numel() / shape.size(0);
  double* values = result.mutable_data<double>();
  for (int64_t block = 0; block < init.blocks; ++block) orthogonal_block(rows, columns, init.a, rng, values + block * rows * columns);
  return result.cast(dtype);
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

[[noreturn]] void fail_parse(const std::string& text) { fail_input("init", "unknown '{}'; expected one of {}", text, names); }

}  // namespace

namespace init {

Init constant(double value) { return of(Init::Kind::constant, value); }
Init zeros() { return constant(0); }
Init ones() { return constant(1); }
Init uniform(double bound) {
  if (!(bound >= 0 && std::isfinite(bound))) fail("init", "uniform: expected a bound >= 0, got {}", bound);
  return of(Init::Kind::uniform, bound);
}
Init normal(double std) {
  if (!(std >= 0 && std::isfinite(std))) fail("init", "normal: expected a standard deviation >= 0, got {}", std);
  return of(Init::Kind::normal, std);
}

Init xavier_uniform(const Shape& weight, double gain) {
  const Fans fan = fans(weight);
  return uniform(gain * std::sqrt(over(6, fan.in + fan.out)));
}
Init xavier_normal(const Shape& weight, double gain) {
  const Fans fan = fans(weight);
  return normal(gain * std::sqrt(over(2, fan.in + fan.out)));
}
Init he_uniform(const Shape& weight) { return uniform(std::sqrt(over(6, fans(weight).in))); }
Init he_normal(const Shape& weight) { return normal(std::sqrt(over(2, fans(weight).in))); }
Init pytorch_default(const Shape& weight) { return uniform(std::sqrt(over(1, fans(weight).in))); }
Init orthogonal(double gain, int64_t blocks) { return {.kind = Init::Kind::orthogonal, .a = gain, .blocks = blocks}; }

Init parse(const std::string& text, const Shape& weight) {
  if (text == "zeros") return zeros();
  if (text == "ones") return ones();
  const size_t colon = text.find(':');
  if (colon != std::string::npos) {
    const std::string kind = text.substr(0, colon);
    const std::optional<double> value = number(std::string_view(text).substr(colon + 1));
    if (kind != "normal" && kind != "uniform" && kind != "constant") fail_parse(text);
    if (!value || (*value < 0 && kind != "constant"))
      fail_input("init", "'{}': expected a {}number after the colon", text, kind == "constant" ? "" : "non-negative ");
    return kind == "normal" ? normal(*value) : kind == "uniform" ? uniform(*value) : constant(*value);
  }
  using Rule = Init (*)(const Shape&);
  static constexpr std::pair<const char*, Rule> rules[] = {
      {"pytorch", pytorch_default},
      {"xavier_uniform", [](const Shape& shape) { return xavier_uniform(shape); }},
      {"xavier_normal", [](const Shape& shape) { return xavier_normal(shape); }},
      {"he_uniform", he_uniform},
      {"he_normal", he_normal},
      {"orthogonal", [](const Shape&) { return orthogonal(); }},
  };
  for (const auto& [name, rule] : rules) {
    if (text != name) continue;
    if (weight.rank() < 2) fail_input("init", "'{}' needs a weight of rank >= 2, got {}", text, weight);
    return rule(weight);
  }
  fail_parse(text);
}

}  // namespace init

Tensor draw(const Init& init, const Shape& shape, DType dtype, Rng rng) {
  Tensor result;
  switch (init.kind) {
    case Init::Kind::constant: result = Tensor::full(shape, init.a, dtype); break;
    case Init::Kind::uniform: result = rand(shape, rng, dtype, -init.a, init.a); break;
    case Init::Kind::normal: result = randn(shape, rng, dtype, 0.0, init.a); break;
    case Init::Kind::orthogonal: result = orthogonal_tensor(init, shape, dtype, rng); break;
  }
  if (init.zero_row >= 0) {
    if (shape.rank() < 1 || init.zero_row >= shape.size(0)) fail("init", "zero_row: {} is not a row of {}", init.zero_row, shape);
    with_float("init", dtype, [&](auto zero) {
      const int64_t width = shape.numel() / shape.size(0);
      std::fill_n(result.mutable_data<decltype(zero)>() + init.zero_row * width, width, zero);
    });
  }
  return result;
}

}  // namespace lamina::nn
