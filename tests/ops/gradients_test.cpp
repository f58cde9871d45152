// Every op against central differences in f64: one table of functions, input shapes and input domains.

#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <cmath>

#include "support/allclose.h"
#include "support/gradcheck.h"

using namespace lamina;
using namespace lamina::test;

namespace {

using Inputs = std::vector<Tensor>;

/// Where inputs are drawn from; kinks and poles are left out by the choice.
enum class Domain { normal, away, positive, unit, distinct };

Tensor draw(Domain domain, const Shape& shape, uint64_t seed) {
  switch (domain) {
    case Domain::normal: return normal(shape, seed, DType::f64);
    case Domain::away: return away_from_zero(shape, seed, 0.1, 2, DType::f64);
    case Domain::positive: return uniform(shape, seed, 0.3, 3, DType::f64);
    case Domain::unit: return uniform(shape, seed, -0.9, 0.9, DType::f64);
    case Domain::distinct: return distinct(shape, seed, 0.1, DType::f64);
  }
  return {};
}

struct Row {
  const char* name;
  Domain domain;
  std::vector<Shape> shapes;
  Function fn;
  bool expect_zero = false;
};

Tensor mask() { return tensor<uint8_t>({1, 0, 1, 0, 0, 1}, {2, 3}); }
Tensor ids(std::initializer_list<int64_t> values, const Shape& shape) { return tensor<int64_t>(values, shape); }

Row unary(const char* name, Tensor (*fn)(const Tensor&), Domain domain = Domain::normal, bool expect_zero = false) {
  return {name, domain, {{3, 5}}, [fn](const Inputs& in) { return fn(in[0]); }, expect_zero};
}

std::vector<Row> elementwise_rows() {
  const std::vector<Shape> same{{2, 3}, {2, 3}}, across{{3, 1, 4}, {2, 1, 5, 1}}, scalar{{}, {2, 3}};
  std::vector<Row> rows{
      unary("neg", [](const Tensor& x) { return -x; }),
      unary("abs", abs, Domain::away),
      unary("exp", exp),
      unary("expm1", expm1),
      unary("log", log, Domain::positive),
      unary("log1p", log1p, Domain::positive),
      unary("sqrt", sqrt, Domain::positive),
      unary("square", square),
      unary("reciprocal", reciprocal, Domain::away),
      unary("sin", sin),
      unary("cos", cos),
      unary("erf", erf),
      unary("sign", sign, Domain::away, true),
      unary(
          "floor", [](const Tensor& x) { return floor(x * 0.1 + 0.5); }, Domain::unit, true),
      unary("relu", relu, Domain::away),
      unary(
          "leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.2); }, Domain::away),
      unary("tanh", tanh),
      unary("sigmoid", sigmoid),
      unary("gelu", [](const Tensor& x) { return gelu(x); }),
      unary("gelu_tanh", [](const Tensor& x) { return gelu(x, Gelu::tanh); }),
      unary("silu", silu),
      unary("softplus", softplus),
      unary(
          "clamp", [](const Tensor& x) { return clamp(x, -0.52, 0.77); }, Domain::distinct),
      unary("x + 2", [](const Tensor& x) { return x + 2.0; }),
      unary("2 - x", [](const Tensor& x) { return 2.0 - x; }),
      unary("x * 3", [](const Tensor& x) { return x * 3.0; }),
      unary("x / 3", [](const Tensor& x) { return x / 3.0; }),
      unary("x / 4", [](const Tensor& x) { return x / 4.0; }),
      unary(
          "3 / x", [](const Tensor& x) { return 3.0 / x; }, Domain::away),
      unary(
          "x^2", [](const Tensor& x) { return pow(x, 2.0); }, Domain::away),
      unary(
          "x^3", [](const Tensor& x) { return pow(x, 3.0); }, Domain::away),
      unary(
          "x^-1.7", [](const Tensor& x) { return pow(x, -1.7); }, Domain::positive),
      unary(
          "x^0", [](const Tensor& x) { return pow(x, 0.0); }, Domain::away, true),
      {"where", Domain::normal, {{2, 3}, {3}}, [](const Inputs& in) { return where(mask(), in[0], in[1]); }},
      {"where, broadcast mask", Domain::normal, {{4, 2, 3}, {}}, [](const Inputs& in) { return where(mask(), in[0], in[1]); }},
  };
  for (const auto& shapes : {same, across, scalar}) {
    rows.push_back({"add", Domain::normal, shapes, [](const Inputs& in) { return in[0] + in[1]; }});
    rows.push_back({"sub", Domain::normal, shapes, [](const Inputs& in) { return in[0] - in[1]; }});
    rows.push_back({"mul", Domain::normal, shapes, [](const Inputs& in) { return in[0] * in[1]; }});
    rows.push_back({"div", Domain::away, shapes, [](const Inputs& in) { return in[0] / in[1]; }});
    rows.push_back({"maximum", Domain::normal, shapes, [](const Inputs& in) { return maximum(in[0], in[1]); }});
    rows.push_back({"minimum", Domain::normal, shapes, [](const Inputs& in) { return minimum(in[0], in[1]); }});
    rows.push_back({"pow", Domain::positive, shapes, [](const Inputs& in) { return pow(in[0], in[1]); }});
  }
  return rows;
}

std::vector<Row> reduce_rows() {
  std::vector<Row> rows;
  for (const auto& [axes, keep] :
       {std::pair{Axes{}, false}, std::pair{Axes{1}, false}, std::pair{Axes{-1}, true}, std::pair{Axes{0, 2}, false}, std::pair{Axes{2, 1}, true}}) {
    const auto reduced = [axes = axes, keep = keep](auto fn) { return [=](const Inputs& in) { return fn(in[0], axes, keep); }; };
    rows.push_back({"sum", Domain::normal, {{3, 4, 2}}, reduced([](const Tensor& x, const Axes& a, bool k) { return sum(x, a, k); })});
    rows.push_back({"mean", Domain::normal, {{3, 4, 2}}, reduced([](const Tensor& x, const Axes& a, bool k) { return mean(x, a, k); })});
    rows.push_back({"var", Domain::normal, {{3, 4, 2}}, reduced([](const Tensor& x, const Axes& a, bool k) { return var(x, a, 1, k); })});
    rows.push_back({"var biased", Domain::normal, {{3, 4, 2}}, reduced([](const Tensor& x, const Axes& a, bool k) { return var(x, a, 0, k); })});
    rows.push_back({"max", Domain::distinct, {{3, 4, 2}}, reduced([](const Tensor& x, const Axes& a, bool k) { return max(x, a, k); })});
    rows.push_back({"min", Domain::distinct, {{3, 4, 2}}, reduced([](const Tensor& x, const Axes& a, bool k) { return min(x, a, k); })});
    rows.push_back({"norm", Domain::normal, {{3, 4, 2}}, reduced([](const Tensor& x, const Axes& a, bool k) { return norm(x, a, k); })});
  }
  rows.push_back({"sum_to", Domain::normal, {{2, 3, 4}}, [](const Inputs& in) { return sum_to(in[0], {3, 1}); }});
  rows.push_back({"sum of a scalar", Domain::normal, {{}}, [](const Inputs& in) { return sum(in[0]); }});
  return rows;
}

std::vector<Row> matmul_rows() {
  std::vector<Row> rows;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const auto fn = [=](const Inputs& in) { return matmul(in[0], in[1], {ta, tb}); };
      const auto matrix = [](Shape batch, int64_t r, int64_t c, bool t) {
        return batch.insert(batch.rank(), t ? c : r).insert(batch.rank() + 1, t ? r : c);
      };
      const auto row = [&](const char* name, const Shape& a, const Shape& b) {
        rows.push_back({name, Domain::normal, {matrix(a, 2, 3, ta), matrix(b, 3, 4, tb)}, fn});
      };
      row("matmul", {}, {});
      row("matmul batched", {5}, {5});
      row("matmul, shared right", {2, 3}, {});
      row("matmul, shared left", {}, {2, 3});
      row("matmul, batches broadcast", {2, 1}, {3});
      row("matmul, inner batch axis summed", {2, 3}, {2, 1});
    }
  }
  rows.push_back({"linear", Domain::normal, {{4, 3}, {5, 3}, {5}}, [](const Inputs& in) { return linear(in[0], in[1], in[2]); }});
  rows.push_back({"linear, rank 3", Domain::normal, {{2, 4, 3}, {5, 3}, {5}}, [](const Inputs& in) { return linear(in[0], in[1], in[2]); }});
  rows.push_back({"linear without bias", Domain::normal, {{3}, {5, 3}}, [](const Inputs& in) { return linear(in[0], in[1]); }});
  rows.push_back(
      {"linear, one row against a large weight", Domain::normal, {{1, 9}, {11, 9}}, [](const Inputs& in) { return linear(in[0], in[1]); }});
  return rows;
}

std::vector<Row> shape_rows() {
  const auto on = [](const char* name, const Shape& shape, auto fn) {
    return Row{name, Domain::normal, {shape}, [fn](const Inputs& in) { return fn(in[0]); }};
  };
  return {
      on("reshape", {2, 6},
         [](const Tensor& x) {
           return reshape(x, {3, -1});
         }),
      on("flatten", {2, 3, 4}, [](const Tensor& x) { return flatten(x, 1); }),
      on("squeeze", {2, 1, 3}, [](const Tensor& x) { return squeeze(x, 1); }),
      on("unsqueeze", {2, 3}, [](const Tensor& x) { return unsqueeze(x, -1); }),
      on("permute", {2, 3, 4},
         [](const Tensor& x) {
           return permute(x, {2, 0, 1});
         }),
      on("transpose", {2, 3, 4}, [](const Tensor& x) { return transpose(x); }),
      on("expand", {3, 1},
         [](const Tensor& x) {
           return expand(x, {2, 3, 4});
         }),
      on("slice rows", {5, 3}, [](const Tensor& x) { return slice(x, 0, 1, 3); }),
      on("slice columns", {3, 5, 2}, [](const Tensor& x) { return slice(x, 1, -4, -1); }),
      on("select", {3, 4}, [](const Tensor& x) { return select(x, 1, -2); }),
      on("split", {2, 5},
         [](const Tensor& x) {
           const auto parts = split(x, 2, 1);
           return concat({parts[2], parts[0]}, 1);
         }),
      on("index_select", {4, 3},
         [](const Tensor& x) {
           return index_select(x, 0, ids({1, 1, 3}, {3}));
         }),
      on("index_select, last axis", {2, 3},
         [](const Tensor& x) {
           return index_select(x, -1, ids({2, 2, 0, 2}, {4}));
         }),
      on("gather", {2, 3},
         [](const Tensor& x) {
           return gather(x, 1, ids({0, 0, 2, 1}, {2, 2}));
         }),
      on("gather from a corner", {3, 4},
         [](const Tensor& x) {
           return gather(x, 0, ids({2, 0, 0, 1}, {2, 2}));
         }),
      on("embedding", {4, 3},
         [](const Tensor& x) {
           return embedding(ids({1, 1, 0, 3}, {2, 2}), x);
         }),
      {"concat",
       Domain::normal,
       {{2, 3}, {2, 1}, {2, 2}},
       [](const Inputs& in) {
         return concat({in[0], in[1], in[2]}, 1);
       }},
      {"concat rows",
       Domain::normal,
       {{2, 3}, {1, 3}},
       [](const Inputs& in) {
         return concat({in[1], in[0], in[1]});
       }},
      {"stack",
       Domain::normal,
       {{2, 3}, {2, 3}},
       [](const Inputs& in) {
         return stack({in[0], in[1]}, -1);
       }},
  };
}

void check_rows(const std::vector<Row>& rows) {
  uint64_t seed = 1;
  for (const Row& row : rows) {
    Inputs inputs;
    for (const Shape& shape : row.shapes) inputs.push_back(draw(row.domain, shape, seed++));
    INFO(row.name << " of " << inputs[0].shape().str());
    GradcheckOptions options;
    options.expect_zero = row.expect_zero;
    check_gradients(row.fn, inputs, options);
  }
}

}  // namespace

TEST_CASE("gradients of elementwise ops", "[ops][gradcheck]") { check_rows(elementwise_rows()); }
TEST_CASE("gradients of reductions", "[ops][gradcheck]") { check_rows(reduce_rows()); }
TEST_CASE("gradients of matrix products", "[ops][gradcheck]") { check_rows(matmul_rows()); }
TEST_CASE("gradients of shape and index ops", "[ops][gradcheck]") { check_rows(shape_rows()); }

TEST_CASE("gradients of ops composed", "[ops][gradcheck]") {
  // A small attention-like function: everything meets everything.
  check_gradients(
      [](const Inputs& in) {
        const Tensor scores = matmul(in[0], in[1], {.transpose_b = true}) / std::sqrt(3.0);
        const Tensor weights = exp(scores - max(scores, {-1}, true));
        return matmul(weights / sum(weights, {-1}, true), in[2]) * in[3];
      },
      {normal({2, 4, 3}, 1, DType::f64), normal({2, 5, 3}, 2, DType::f64), normal({5, 2}, 3, DType::f64), normal({2}, 4, DType::f64)});
}
