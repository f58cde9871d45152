#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <array>
#include <cmath>
#include <tuple>

#include "support/allclose.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

/// The product of two stacks with equal batches by three loops, in double.
std::vector<double> reference(const Tensor& a, const Tensor& b) {
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1), count = m * k > 0 ? a.numel() / (m * k) : 0;
  const auto x = values(a), y = values(b);
  std::vector<double> c(static_cast<size_t>(count * m * n));
  for (int64_t s = 0; s < count; ++s)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t l = 0; l < k; ++l)
          c[static_cast<size_t>((s * m + i) * n + j)] += x[static_cast<size_t>((s * m + i) * k + l)] * y[static_cast<size_t>((s * k + l) * n + j)];
  return c;
}

}  // namespace

TEST_CASE("matmul of a worked example", "[ops][matmul]") {
  const Tensor a = tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3}), b = tensor<float>({1, 0, 2, -1, 0, 1, 1, 1, 3, 0, 0, 2}, {3, 4});
  const std::vector<double> expected{10, 2, 4, 7, 22, 5, 13, 13};
  check_close(matmul(a, b), expected, exact);
  check_close(matmul(transpose(a), b, {.transpose_a = true}), expected, exact);
  check_close(matmul(a, transpose(b), {.transpose_b = true}), expected, exact);
  check_close(matmul(transpose(a), transpose(b), {true, true}), expected, exact);
}

TEST_CASE("matmul equals three loops for every layout and size", "[ops][matmul]") {
  uint64_t seed = 1;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {2, 3, 5}, {1, 33, 7}, {31, 1, 9}, {17, 19, 64}, {4, 100, 78}, {40, 50, 60}}) {
      const Tensor a = normal({3, m, k}, seed++, dtype), b = normal({3, k, n}, seed++, dtype);
      const auto expected = reference(a, b);
      const double tolerance = dtype == DType::f32 ? f32_sum : f64_rounding * 10;
      CAPTURE(m, n, k);
      check_close(matmul(a, b), expected, tolerance);
      check_close(matmul(transpose(a), b, {.transpose_a = true}), expected, tolerance);
      check_close(matmul(a, transpose(b), {.transpose_b = true}), expected, tolerance);
      check_close(matmul(transpose(a), transpose(b), {true, true}), expected, tolerance);
    }
  }
}

TEST_CASE("matmul broadcasts batches, forward and backward", "[ops][matmul]") {
  // Every pair of batch shapes against the same product with both operands expanded.
  const Shape batches[] = {{}, {3}, {1}, {2, 3}, {2, 1}, {1, 3}, {4, 1, 3}, {4, 2, 1}, {2, 2, 1, 1}};
  uint64_t seed = 1;
  int tried = 0;
  for (const Shape& batch_a : batches) {
    for (const Shape& batch_b : batches) {
      Shape batch;
      try {
        batch = broadcast("test", batch_a, batch_b);
      } catch (const Error&) {
        continue;
      }
      const auto with_matrix = [](const Shape& s, int64_t r, int64_t c) { return s.insert(s.rank(), r).insert(s.rank() + 1, c); };
      for (const auto& [ta, tb] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        Tensor a = normal(ta ? with_matrix(batch_a, 5, 2) : with_matrix(batch_a, 2, 5), seed++, DType::f64).set_requires_grad();
        Tensor b = normal(tb ? with_matrix(batch_b, 3, 5) : with_matrix(batch_b, 5, 3), seed++, DType::f64).set_requires_grad();
        const Tensor c = matmul(a, b, {ta, tb});
        REQUIRE(c.shape() == with_matrix(batch, 2, 3));
        const Tensor dc = normal(c.shape(), seed++, DType::f64);
        c.backward(dc);
        const Tensor da = a.grad(), db = b.grad();
        a.zero_grad(), b.zero_grad();
        const Tensor wide_a = expand(a, with_matrix(batch, a.size(-2), a.size(-1))), wide_b = expand(b, with_matrix(batch, b.size(-2), b.size(-1)));
        const Tensor expected = matmul(wide_a, wide_b, {ta, tb});
        CAPTURE(a.shape().str(), b.shape().str(), ta, tb);
        check_close(c, expected, f64_rounding);
        expected.backward(dc);
        check_close(da, a.grad(), f64_rounding * 10);
        check_close(db, b.grad(), f64_rounding * 10);
        ++tried;
      }
    }
  }
  CHECK(tried > 150);
}

TEST_CASE("transposed inputs are read as what they are (A19)", "[ops][matmul]") {
  const Tensor x = tensor<double>({0, 10, 1, 0, 5, 5}, {3, 2}).set_requires_grad();
  const Tensor y = transpose(x);
  check_close(y, {0, 1, 5, 10, 0, 5}, exact);
  const Tensor w = tensor<double>({1, 2, 3}, {3, 1});
  const Tensor z = matmul(y, w);
  check_close(z, {17, 25}, exact);
  z.backward(tensor<double>({1, 10}, {2, 1}));
  check_close(x.grad(), {1, 10, 2, 20, 3, 30}, exact);
}

TEST_CASE("a shared weight's gradient is exact in integers whatever the threads", "[ops][matmul]") {
  // Entries are small integers: sums are exact in f32, so any order must give the same bits.
  const Tensor x = integers({7, 50, 30}, 1, -3, 4).cast(DType::f32), dy = integers({7, 50, 20}, 2, -3, 4).cast(DType::f32);
  Tensor w = integers({30, 20}, 3, -3, 4).cast(DType::f32).set_requires_grad();
  matmul(x, w).backward(dy);
  const Tensor flat = matmul(reshape(x, {350, 30}), reshape(dy, {350, 20}), {.transpose_a = true});
  CHECK(same_bits(w.grad(), flat));
  CHECK(norm_of(flat) > 100);
}

TEST_CASE("matmul of nothing", "[ops][matmul]") {
  const auto check = [](const Shape& sa, const Shape& sb, const Shape& sc) {
    Tensor a = ones(sa).set_requires_grad(), b = ones(sb).set_requires_grad();
    const Tensor c = matmul(a, b);
    CAPTURE(sa.str(), sb.str());
    CHECK(c.shape() == sc);
    // What recycled memory holds must not show in results that no product writes.
    for (const int64_t size : {4, 8, 12, 16}) std::ignore = full({size}, NAN);
    check_close(c, std::vector<double>(static_cast<size_t>(c.numel()), 0.0), exact);
    c.backward(ones(sc));
    check_close(a.grad(), zeros(sa), exact);
    check_close(b.grad(), zeros(sb), exact);
  };
  check({2, 0}, {0, 3}, {2, 3});
  check({0, 4}, {4, 3}, {0, 3});
  check({2, 4}, {4, 0}, {2, 0});
  check({5, 2, 0}, {0, 3}, {5, 2, 3});
  check({0, 2, 4}, {4, 3}, {0, 2, 3});
  check({0, 2, 4}, {1, 4, 3}, {0, 2, 3});
  check({2, 4}, {0, 4, 3}, {0, 2, 3});
  check({3, 0, 4}, {4, 3}, {3, 0, 3});
}

TEST_CASE("matmul refuses what does not fit", "[ops][matmul]") {
  const Tensor a = ones({2, 3});
  CHECK_THROWS_WITH(matmul(a, ones({2, 3})), contains("[matmul] inner sizes differ: [2, 3] has 3 columns, [2, 3] has 2 rows"));
  CHECK_THROWS_WITH(matmul(a, a, {true, true}), contains("[2, 3] transposed has 2 columns"));
  CHECK_THROWS_WITH(matmul(a, ones({3})), contains("[matmul] expected operands of rank 2 or more, got [2, 3] and [3]"));
  CHECK_THROWS_WITH(matmul(a, ones({3, 1}, DType::f64)), contains("cast()"));
  CHECK_THROWS_WITH(matmul(ones({2, 2, 3}), ones({3, 3, 1})), contains("[matmul] shapes [2] and [3] do not broadcast"));
  CHECK_THROWS_WITH(matmul(ones({2, 2}, DType::i64), ones({2, 2}, DType::i64)), contains("[matmul] expected a tensor of f32 or f64, got i64"));
}

TEST_CASE("linear is x W^T + b", "[ops][matmul]") {
  Tensor x = tensor<double>({1, 2, 3, 4, 5, 6}, {2, 3}).set_requires_grad(), w = tensor<double>({1, 0, -1, 2, 1, 0}, {2, 3}).set_requires_grad();
  Tensor b = tensor<double>({10, 20}, {2}).set_requires_grad();
  const Tensor y = linear(x, w, b);
  check_close(y, {8, 24, 8, 33}, exact);
  y.backward(tensor<double>({1, 10, 2, 100}, {2, 2}));
  check_close(x.grad(), {21, 10, -1, 202, 100, -2}, exact);
  check_close(w.grad(), {9, 12, 15, 410, 520, 630}, exact);
  check_close(b.grad(), {3, 110}, exact);
}

TEST_CASE("linear equals matmul and add, in every rank and size", "[ops][matmul]") {
  uint64_t seed = 1;
  for (const Shape& shape :
       {Shape{5}, Shape{1, 5}, Shape{7, 5}, Shape{2, 3, 5}, Shape{0, 5}, Shape{2, 0, 5}, Shape{300, 70}, Shape{4, 784}, Shape{3, 0}}) {
    for (const bool with_bias : {true, false}) {
      const int64_t in = shape[-1];
      Tensor x = normal(shape, seed++, DType::f64).set_requires_grad(), w = normal({13, in}, seed++, DType::f64).set_requires_grad();
      Tensor b = with_bias ? normal({13}, seed++, DType::f64).set_requires_grad() : Tensor();
      const Tensor y = linear(x, w, b), dy = normal(y.shape(), seed++, DType::f64);
      y.backward(dy);
      const Tensor dx = x.grad(), dw = w.grad(), db = with_bias ? b.grad() : Tensor();
      x.zero_grad(), w.zero_grad(), b.zero_grad();
      int64_t rows = 1;
      for (const int64_t size : shape.without(-1)) rows *= size;
      Tensor expected = reshape(matmul(reshape(x, {rows, in}), w, {.transpose_b = true}), y.shape());
      if (with_bias) expected = expected + b;
      CAPTURE(shape.str(), with_bias);
      check_close(y, expected, f64_rounding * 10);
      expected.backward(dy);
      check_close(dx, x.grad(), f64_rounding * 10);
      check_close(dw, w.grad(), f64_rounding * 10);
      if (with_bias) check_close(db, b.grad(), f64_rounding * 10);
    }
  }
}

TEST_CASE("linear refuses what does not fit and computes only what is needed", "[ops][matmul]") {
  const Tensor x = ones({2, 3}), w = ones({4, 3});
  CHECK_THROWS_WITH(linear(ones({2, 5}), w), contains("[linear] x: expected [..., 3], got [2, 5] (weight is [4, 3])"));
  CHECK_THROWS_WITH(linear(x, ones({3})), contains("[linear] weight: expected [out, in], got [3]"));
  CHECK_THROWS_WITH(linear(x, w, ones({3})), contains("[linear] bias: expected [4], got [3] (weight is [4, 3])"));
  CHECK_THROWS_WITH(linear(x, ones({4, 3}, DType::f64)), contains("[linear]") && contains("cast()"));
  CHECK_THROWS_AS(linear(scalar(1), w), Error);
  Tensor bias = zeros({4}).set_requires_grad();
  const Tensor y = linear(x, w, bias);
  y.backward(tensor<float>({1, 2, 3, 4, 10, 20, 30, 40}, {2, 4}));
  check_close(bias.grad(), {11, 22, 33, 44}, exact);
  CHECK_FALSE(w.grad().defined());
  // No outputs at all.
  Tensor none = zeros({0, 3}).set_requires_grad();
  linear(x, none).backward(zeros({2, 0}));
  CHECK(none.grad().shape() == Shape{0, 3});
}
