// What a user sees of gradients: hooks, retain_grad, autograd::grad, no_grad, accumulation.

#include <lamina/autograd/graph.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>

#include "support/allclose.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {
Tensor leaf(std::initializer_list<double> values, const Shape& shape) { return tensor<double>(values, shape).set_requires_grad(); }
Tensor leaf(double value) { return scalar(value, DType::f64).set_requires_grad(); }
}  // namespace

TEST_CASE("hooks see and may replace the complete gradient", "[autograd]") {
  Tensor x = leaf(3);
  SECTION("of a leaf") {
    int calls = 0;
    x.register_hook([&](const Tensor& g) {
      ++calls;
      CHECK(g.item() == 2);  // both uses together
      CHECK_FALSE(grad_enabled());
      return g * 10.0;
    });
    (x + x).backward();
    CHECK(calls == 1);
    check_close(x.grad(), {20}, exact);
  }
  SECTION("of a computed tensor, before its own backward") {
    Tensor y = x * 2.0;
    double seen = 0;
    y.register_hook([&](const Tensor& g) {
      seen = g.item();
      return Tensor();  // only looks
    });
    y.register_hook([](const Tensor& g) { return g + 1.0; });
    (y * 5.0 + y).backward();
    CHECK(seen == 6);
    check_close(x.grad(), {14}, exact);
  }
  SECTION("the replacement must fit") {
    x.register_hook([](const Tensor&) { return ones({2}, DType::f64); });
    CHECK_THROWS_WITH((x * 1.0).backward(), contains("[hook] returned gradient: expected f64 [] on " + device().str() + ", got f64 [2]"));
    CHECK_FALSE(x.grad().defined());
  }
}

TEST_CASE("a hook may register hooks, which run from the next backward on", "[autograd]") {
  Tensor x = leaf({1, 2}, {2});
  Tensor y = x * 2.0;
  int later = 0;
  for (Tensor* t : {&x, &y}) {
    t->register_hook([t, &later](const Tensor&) {
      for (int i = 0; i < 20; ++i) t->register_hook([&later](const Tensor&) { return ++later, Tensor(); });
      return Tensor();
    });
  }
  sum(y).backward({}, true);
  CHECK(later == 0);
  sum(y).backward();
  CHECK(later == 40);
  check_close(x.grad(), {4, 4}, exact);
}

TEST_CASE("retain_grad keeps the gradient of a computed tensor", "[autograd]") {
  Tensor x = leaf(3);
  Tensor y = square(x), z = y * 4.0;
  y.retain_grad();
  CHECK_FALSE(y.grad().defined());
  z.backward({}, true);
  check_close(y.grad(), {4}, exact);
  CHECK_FALSE(z.grad().defined());
  z.backward();
  check_close(y.grad(), {8}, exact);
  check_close(x.grad(), {48}, exact);
}

TEST_CASE("autograd::grad returns gradients and touches none", "[autograd]") {
  Tensor x = leaf(3), w = leaf(2), unused = leaf(1);
  const auto gradients = [](const Tensor& y, std::vector<Tensor> inputs, const Tensor& dy = {}, autograd::GradOptions options = {}) {
    return autograd::grad(y, inputs, dy, options);
  };
  SECTION("of leaves") {
    const auto g = gradients(x * x * w, {x, w, unused});
    check_close(g[0], {12}, exact);
    check_close(g[1], {9}, exact);
    CHECK_FALSE(g[2].defined());
    CHECK_FALSE(x.grad().defined());
    CHECK_FALSE(w.grad().defined());
  }
  SECTION("of computed tensors, and the walk does no work beyond them") {
    Tensor h = x * w;
    int reached = 0;
    x.register_hook([&](const Tensor&) {
      ++reached;
      return Tensor();
    });
    const auto g = gradients(square(h) + h, {h});
    check_close(g[0], {13}, exact);
    CHECK(reached == 0);
  }
  SECTION("of both at once, from a cotangent") {
    const Tensor h = x * w;
    const auto g = gradients(h * h, {h, x}, scalar(10, DType::f64));
    check_close(g[0], {120}, exact);
    check_close(g[1], {240}, exact);
  }
  SECTION("of the output itself") {
    const Tensor y = x * 2.0;
    check_close(gradients(y, {y, x})[0], {1}, exact);
    check_close(gradients(x, {x})[0], {1}, exact);
  }
  SECTION("retain_graph") {
    const Tensor y = x * x;
    gradients(y, {x}, {}, {.retain_graph = true});
    check_close(gradients(y, {x})[0], {6}, exact);
    CHECK_THROWS_WITH(gradients(y, {x}), contains("already freed"));
  }
  SECTION("second derivatives do not exist and say so") {
    CHECK_THROWS_WITH(gradients(x * x, {x}, {}, {.create_graph = true}), contains("[grad] second derivatives are not supported"));
    const Tensor g = gradients(x * x, {x})[0];
    CHECK_FALSE(g.requires_grad());
    CHECK_THROWS_WITH(g.backward(), contains("no second derivatives"));
  }
  SECTION("inputs must require gradients") {
    CHECK_THROWS_WITH(gradients(x * x, {x.detach()}), contains("[grad] an input [] does not require a gradient"));
  }
}

TEST_CASE("what autograd::grad returns shares no memory", "[autograd]") {
  Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  const Tensor dy = full({2}, 5, DType::f64), y = a + b;
  std::vector<Tensor> gradients = autograd::grad(y, std::vector<Tensor>{a, b, y, a}, dy, {.retain_graph = true});
  gradients[0].fill_(7);
  check_close(dy, {5, 5}, exact);
  for (const size_t other : {1, 2, 3}) check_close(gradients[other], {5, 5}, exact);
}

TEST_CASE("a leaf frozen between forward and backward gets nothing", "[autograd]") {
  Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  const Tensor y = sum(a * b);
  a.set_requires_grad(false);
  y.backward();
  CHECK_FALSE(a.grad().defined());
  check_close(b.grad(), {1, 2}, exact);
}

TEST_CASE("no_grad, detach and frozen leaves record nothing they should not", "[autograd]") {
  const int64_t nodes = autograd::live_nodes();
  Tensor x = leaf(3), w = leaf(2);
  {
    const NoGrad guard;
    CHECK_FALSE(grad_enabled());
    { const NoGrad inner; }
    CHECK_FALSE(grad_enabled());
    CHECK_FALSE((x * w).requires_grad());
    CHECK(autograd::live_nodes() == nodes);
  }
  CHECK(grad_enabled());
  (x * (x * w).detach()).backward();
  check_close(x.grad(), {6}, exact);
  CHECK_FALSE(w.grad().defined());
  x.zero_grad();
  w.set_requires_grad(false);
  (x * w).backward();
  check_close(x.grad(), {2}, exact);
  CHECK_FALSE(w.grad().defined());
  CHECK_FALSE((w * 2.0).requires_grad());
  // Freezing after the forward pass does not change that graph.
  w.set_requires_grad(true);
  const Tensor y = x * w;
  x.set_requires_grad(false);
  y.backward();
  check_close(w.grad(), {3}, exact);
}

TEST_CASE("gradients accumulate until cleared, and what grad() returned stays as it was", "[autograd]") {
  Tensor x = leaf({1, 2}, {2});
  sum(x * 3.0).backward();
  const Tensor first = x.grad();
  sum(x * 4.0).backward();
  check_close(first, {3, 3}, exact);
  check_close(x.grad(), {7, 7}, exact);
  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
  // One dy handed to two leaves must not become one buffer.
  Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  Tensor dy = tensor<double>({1, 1}, {2});
  (a + b).backward(dy);
  sum(a).backward();
  check_close(a.grad(), {2, 2}, exact);
  check_close(b.grad(), {1, 1}, exact);
  check_close(dy, {1, 1}, exact);
  dy.fill_(9);
  check_close(a.grad(), {2, 2}, exact);
  check_close(b.grad(), {1, 1}, exact);
}

TEST_CASE("a linear weight's gradient is the same whether it is kept as factors or not", "[autograd]") {
  // 2 rows against [40, 50] are kept as factors, 60 rows are not; the sums of both kinds must be those of the matrix products.
  Tensor w = normal({40, 50}, 1, DType::f64).set_requires_grad();
  Tensor expected = zeros({40, 50}, DType::f64);
  for (const int64_t rows : {2, 3, 60, 2}) {
    const Tensor x = normal({rows, 50}, 10 + static_cast<uint64_t>(rows), DType::f64),
                 dy = normal({rows, 40}, 20 + static_cast<uint64_t>(rows), DType::f64);
    linear(x, w).backward(dy);
    expected = expected + matmul(dy, x, {.transpose_a = true});
    if (rows == 3) check_close(w.grad(), expected, f64_rounding * 10);
  }
  check_close(w.grad(), expected, f64_rounding * 10);
  CHECK(norm_of(expected) > 1);
  // A hook sees the product.
  Tensor v = normal({40, 50}, 2, DType::f64).set_requires_grad();
  v.register_hook([](const Tensor& g) { return g * 2.0; });
  const Tensor x = normal({2, 50}, 3, DType::f64), dy = normal({2, 40}, 4, DType::f64);
  linear(x, v).backward(dy);
  check_close(v.grad(), matmul(dy, x, {.transpose_a = true}) * 2.0, f64_rounding * 10);
  const Tensor y = linear(x, v);
  check_close(autograd::grad(y, std::vector<Tensor>{v}, dy)[0], v.grad(), f64_rounding * 10);
}
