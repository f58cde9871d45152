#include <lamina/autograd/graph.h>
#include <lamina/core/memory.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>

#include <thread>

#include "support/allclose.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

Tensor leaf(std::initializer_list<double> values, const Shape& shape) { return tensor<double>(values, shape).set_requires_grad(); }
Tensor leaf(double value) { return scalar(value, DType::f64).set_requires_grad(); }

/// An op whose backward throws.
Tensor failing(const Tensor& x) {
  return autograd::record("failing", {x}, x.clone(), {}, [](autograd::Backward&) { fail("failing", "refused"); });
}

}  // namespace

TEST_CASE("a tensor used more than once gets the sum of its gradients (E01)", "[autograd]") {
  SECTION("a + a, twice") {
    Tensor a = leaf(1);
    const Tensor b = a + a, c = b + b;
    c.backward();
    check_close(a.grad(), {4}, exact);
  }
  SECTION("a sum of products") {
    Tensor a = leaf(2), b = leaf(3);
    const Tensor y = (a + b) + (a * b) + (a + b) * (a * b);
    CHECK(y.item() == 41);
    y.backward();
    check_close(a.grad(), {25}, exact);
    check_close(b.grad(), {19}, exact);
  }
  SECTION("both operands") {
    const auto gradient = [](auto f) {
      Tensor x = leaf(3);
      f(x).backward();
      return x.grad().item();
    };
    CHECK(gradient([](const Tensor& x) { return x * x; }) == 6);
    CHECK(gradient([](const Tensor& x) { return x + x; }) == 2);
    CHECK(gradient([](const Tensor& x) { return x - x; }) == 0);
    CHECK(gradient([](const Tensor& x) { return x / x; }) == 0);
    CHECK(gradient([](const Tensor& x) { return maximum(x, x); }) == 1);
  }
  SECTION("a matrix with itself") {
    Tensor x = leaf({1, 2, 3, 4}, {2, 2});
    sum(matmul(x, x)).backward();
    check_close(x.grad(), {7, 11, 9, 13}, exact);
  }
  SECTION("a ladder of diamonds: the number of paths is 2^20") {
    Tensor x = leaf(1);
    Tensor y = x;
    for (int i = 0; i < 20; ++i) y = y * 0.5 + y * 1.5;
    y.backward();
    check_close(x.grad(), {1048576}, exact);
  }
}

TEST_CASE("running backward twice needs retain_graph and accumulates (E02)", "[autograd]") {
  Tensor x = leaf(5);
  const Tensor y = square(square(x));
  y.backward({}, /*retain_graph=*/true);
  check_close(x.grad(), {500}, exact);
  y.backward();
  check_close(x.grad(), {1000}, exact);
  CHECK_THROWS_WITH(y.backward(), contains("[backward] the graph was already freed at square") && contains("retain_graph = true"));
  check_close(x.grad(), {1000}, exact);
  // A second loss over a freed part says so too.
  const Tensor middle = square(x), other = middle * 2.0;
  other.backward();
  CHECK_THROWS_WITH((middle * 3.0).backward(), contains("already freed"));
}

TEST_CASE("a chain of a million ops trains and frees (E03)", "[large][autograd]") {
  constexpr int length = 1000000;
  const int64_t nodes = autograd::live_nodes();
  Tensor x = leaf(1);
  SECTION("with backward") {
    Tensor y = x;
    for (int i = 0; i < length; ++i) y = y + 1.0;
    CHECK(autograd::live_nodes() == nodes + length);
    CHECK(y.item() == length + 1);
    y.backward();
    check_close(x.grad(), {1}, exact);
  }
  SECTION("destroyed without backward") {
    Tensor y = x;
    for (int i = 0; i < length; ++i) y = y + 1.0;
    CHECK(y.requires_grad());
  }
  SECTION("backward stops half way") {
    Tensor y = x;
    for (int i = 0; i < length / 4; ++i) y = y + 1.0;
    y = failing(y);
    for (int i = 0; i < length / 4; ++i) y = y + 1.0;
    CHECK_THROWS_WITH(y.backward(), contains("[failing] refused"));
    CHECK_FALSE(x.grad().defined());
  }
  CHECK(autograd::live_nodes() == nodes);
}

TEST_CASE("an exception while the graph is built frees what was built (E03)", "[autograd]") {
  const int64_t nodes = autograd::live_nodes(), bytes = autograd::saved_bytes();
  Tensor x = leaf({1, 2}, {2});
  const auto build = [&] {
    const Tensor y = exp(x) * x;
    return matmul(y, y);  // rank 1: refused
  };
  CHECK_THROWS_WITH(build(), contains("[matmul]"));
  CHECK(autograd::live_nodes() == nodes);
  CHECK(autograd::saved_bytes() == bytes);
}

TEST_CASE("a failed backward leaves the gradients of leaves untouched", "[autograd]") {
  Tensor x = leaf(2), w = leaf(3);
  (x * w).backward();
  const Tensor y = failing(x) + x * w;  // x * w may have run when failing() throws
  CHECK_THROWS_WITH(y.backward(), contains("refused"));
  check_close(x.grad(), {3}, exact);
  check_close(w.grad(), {2}, exact);
  (x * w).backward();  // and the graph machinery still works
  check_close(x.grad(), {6}, exact);
}

TEST_CASE("a backward that runs out of memory at its end leaves the gradients of leaves untouched", "[autograd]") {
  const Shape shape{700, 1000};
  Tensor a = ones(shape).set_requires_grad(), b = ones(shape).set_requires_grad();
  const Tensor dy = ones(shape), y = a + b;  // hands dy itself on: both leaves need a copy
  set_memory_limit(memory_stats(device()).current_bytes + dy.nbytes() + dy.nbytes() / 2, device());
  CHECK_THROWS_WITH(y.backward(dy, true), contains("out of memory"));
  CHECK_FALSE(a.grad().defined());
  CHECK_FALSE(b.grad().defined());
  set_memory_limit(0, device());
  y.backward(dy);
  CHECK(same_bits(a.grad(), dy));
  CHECK(same_bits(b.grad(), dy));
}

TEST_CASE("a saved tensor changed before backward is an error (E04)", "[autograd]") {
  SECTION("a saved output") {
    Tensor a = leaf({1, 2, 3}, {3});
    const Tensor b = sigmoid(a);
    slice(b.detach(), 0, 1, 2).fill_(2);
    CHECK_THROWS_WITH(sum(b).backward(), contains("[backward] sigmoid: a tensor [3] that the forward pass saved was changed since"));
    CHECK_FALSE(a.grad().defined());
  }
  SECTION("a saved weight, as an optimiser step would change it") {
    Tensor w = leaf({1, 2}, {2}), x = leaf({3, 4}, {2});
    const Tensor y = sum(w * x);
    w.fill_(0);
    CHECK_THROWS_WITH(y.backward(), contains("mul") && contains("changed since"));
  }
  SECTION("through a view of its buffer") {
    Tensor a = leaf({1, 2, 3, 4}, {2, 2});
    const Tensor row = slice(a, 0, 0, 1);
    const Tensor y = sum(square(row));
    slice(flatten(a.detach()), 0, 3).fill_(7);
    CHECK_THROWS_WITH(y.backward(), contains("changed since"));
  }
  SECTION("what nobody saved may change") {
    Tensor a = leaf({1, 2, 3}, {3});
    const Tensor y = sum(a + 1.0);
    a.fill_(0);
    y.backward();
    check_close(a.grad(), {1, 1, 1}, exact);
  }
}

TEST_CASE("graphs are freed without backward: no op keeps its own output alive (E12)", "[autograd]") {
  const int64_t nodes = autograd::live_nodes(), bytes = autograd::saved_bytes();
  Tensor x = normal({64, 64}, 1).set_requires_grad();
  const std::vector<Tensor (*)(const Tensor&)> functions{
      tanh, exp, sigmoid, sqrt, relu, [](const Tensor& t) { return max(t, {1}); }, [](const Tensor& t) { return norm(t); }};
  for (int i = 0; i < 20; ++i) {
    for (const auto f : functions) {
      { CHECK(f(x).requires_grad()); }
      if (autograd::live_nodes() != nodes) FAIL("nodes stay alive");
    }
  }
  CHECK(autograd::saved_bytes() == bytes);
  const Tensor y = tanh(x);
  CHECK(autograd::live_nodes() == nodes + 1);
  CHECK(autograd::saved_bytes() == bytes + y.nbytes());
}

TEST_CASE("backward frees saved tensors as it passes", "[autograd]") {
  const int64_t nodes = autograd::live_nodes(), bytes = autograd::saved_bytes();
  Tensor x = normal({32}, 1).set_requires_grad();
  const Tensor h = tanh(x);
  const Tensor y = sum(square(h));
  CHECK(autograd::saved_bytes() > bytes);
  y.backward();
  CHECK(autograd::saved_bytes() == bytes);
  CHECK(autograd::live_nodes() == nodes + 2);  // the nodes of h and y, which are still held, empty
}

TEST_CASE("gradients that cannot be are errors (E14)", "[autograd]") {
  CHECK_THROWS_WITH(zeros({2}, DType::i64).set_requires_grad(),
                    contains("[set_requires_grad] only f32 and f64 tensors have gradients, this one is i64 [2]"));
  Tensor x = leaf({1, 2}, {2});
  CHECK_FALSE(argmax(x).requires_grad());
  CHECK_FALSE((gt(x, 0.0)).requires_grad());
  const Tensor y = x * 2.0;
  CHECK_THROWS_WITH(y.backward(), contains("[backward] expected a scalar, got [2]"));
  CHECK_THROWS_WITH(y.backward(ones({3}, DType::f64)), contains("[backward] cotangent: expected f64 [2] on " + device().str() + ", got f64 [3]"));
  CHECK_THROWS_WITH(y.backward(ones({2})), contains("got f32"));
  y.backward(tensor<double>({1, 10}, {2}));
  check_close(x.grad(), {2, 20}, exact);
  CHECK_THROWS_WITH(ones({}).backward(), contains("does not depend on anything that requires a gradient"));
  CHECK_THROWS_WITH(x.detach().backward(), contains("does not depend on anything"));
  CHECK_THROWS_WITH(y.detach().retain_grad(), contains("[retain_grad]"));
  CHECK_THROWS_WITH(y.detach().register_hook([](const Tensor&) { return Tensor(); }), contains("[register_hook]"));
  Tensor computed = x * 1.0;
  CHECK_THROWS_WITH(computed.set_requires_grad(), contains("was computed by the graph (mul)"));
  CHECK_THROWS_WITH(x.set_grad(ones({3}, DType::f64)), contains("[set_grad] expected f64 [2] on " + device().str() + ", got f64 [3]"));
  CHECK_THROWS_WITH(autograd::record("empty", {x}, Tensor(), {}, [](autograd::Backward&) {}), contains("[empty] record: output 0 is undefined"));
  CHECK_THROWS_WITH(autograd::refuse_gradient("round", {x}), contains("[round] has no gradient"));
  const NoGrad guard;
  autograd::refuse_gradient("round", {x});
}

TEST_CASE("an op of one's own that gives a wrong gradient is told so", "[autograd]") {
  Tensor x = leaf({1, 2, 3}, {3});
  const auto with = [&](autograd::BackwardFn fn) { return autograd::record("mine", {x}, x.clone(), autograd::save({x}), std::move(fn)); };
  const Tensor dy = ones({3}, DType::f64);
  CHECK_THROWS_WITH(with([](autograd::Backward& b) { b.give(0, ones({2}, DType::f64)); }).backward(dy),
                    contains("[mine] backward: gradient of input 0: expected f64 [3] on " + device().str() + ", got f64 [2] on " + device().str()));
  CHECK_THROWS_WITH(with([](autograd::Backward& b) { b.give(0, ones({3})); }).backward(dy), contains("got f32 [3]"));
  CHECK_THROWS_WITH(with([](autograd::Backward& b) { b.give(0, Tensor()); }).backward(dy),
                    contains("[mine] backward gave an undefined gradient for input 0"));
  CHECK_THROWS_WITH(with([](autograd::Backward& b) {
                      b.give(0, b.dy());
                      b.give(0, b.dy());
                    }).backward(dy),
                    contains("twice"));
  CHECK_THROWS(with([](autograd::Backward& b) { b.give(1, b.dy()); }).backward(dy));
  CHECK_THROWS(with([](autograd::Backward& b) { b.give(0, b.saved(1)); }).backward(dy));
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_WITH(autograd::record("mine", {x}, x, {}, [](autograd::Backward&) {}), contains("[mine] record: output 0 must be a fresh tensor"));
  // A backward that gives nothing leaves the leaf without a gradient.
  with([](autograd::Backward&) {}).backward(dy);
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("several outputs: those without a gradient count as zero", "[autograd]") {
  Tensor x = leaf({1, 2, 3, 4, 5}, {5});
  const auto parts = split(x, 2);
  REQUIRE(parts.size() == 3);
  (sum(parts[2]) * 7.0).backward();
  check_close(x.grad(), {0, 0, 0, 0, 7}, exact);
}

TEST_CASE("an observer sees each recorded op in order", "[autograd]") {
  Tensor x = leaf(2);
  std::vector<std::string> seen;
  {
    const autograd::Observer observer([&](const char* op, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
      seen.push_back(op);
      CHECK(inputs.size() == 1);
      CHECK(outputs[0].requires_grad());
    });
    exp(tanh(x));
    exp(x.detach());  // not recorded
  }
  exp(x);
  CHECK(seen == std::vector<std::string>{"tanh", "exp"});
}

TEST_CASE("threads train graphs of their own at once", "[autograd]") {
  const auto train = [](uint64_t seed) {
    Tensor w1 = normal({16, 8}, seed, DType::f64, 0, 0.5).set_requires_grad(), w2 = normal({1, 16}, seed + 1, DType::f64, 0, 0.5).set_requires_grad();
    const Tensor x = normal({32, 8}, seed + 2, DType::f64), target = normal({32, 1}, seed + 3, DType::f64);
    std::vector<double> losses;
    for (int i = 0; i < 60; ++i) {
      const Tensor loss = mean(square(linear(tanh(linear(x, w1)), w2) - target));
      for (Tensor* w : {&w1, &w2}) w->zero_grad();
      loss.backward();
      losses.push_back(loss.item());
      const NoGrad guard;
      for (Tensor* w : {&w1, &w2}) w->copy_(w->detach() - w->grad() * 0.05);
    }
    return losses;
  };
  const auto alone1 = train(1), alone2 = train(100);
  CHECK(alone1.back() < alone1.front() * 0.9);
  std::vector<double> together1, together2;
  std::thread one([&] { together1 = train(1); });
  std::thread two([&] { together2 = train(100); });
  one.join();
  two.join();
  const auto check = [](const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(difference(a[i], b[i]) < 1e-9);  // BLAS may cut its sums elsewhere
  };
  check(together1, alone1);
  check(together2, alone2);
}
