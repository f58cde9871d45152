#include <cmath>
#include <limits>

#include <lamina/nn/layers.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/optim/optimizer.h>

#include "support/allclose.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;
using nn::Parameter;

namespace {

Parameter with_gradient(const std::vector<double>& gradient) {
  Parameter p = on_device(Parameter({static_cast<int64_t>(gradient.size())}, nn::init::zeros(), DType::f64));
  p.tensor().set_grad(tensor(gradient, p.shape()));
  return p;
}

}  // namespace

TEST_CASE("B12: clipping by norm is PyTorch's, over all parameters together") {
  Parameter p = with_gradient({3, 4});
  CHECK(optim::clip_grad_norm({&p}, 1) == 5);
  check_close(p.grad(), {0.59999988, 0.79999984}, 1e-8);
  CHECK(optim::clip_grad_norm({&p}, 2) < 1);  // and below the limit nothing happens
  check_close(p.grad(), {0.59999988, 0.79999984}, 1e-8);

  Parameter a = with_gradient({2}), b = with_gradient({2});
  Parameter none = on_device(Parameter({3}, nn::init::zeros())), frozen = with_gradient({100});
  frozen.freeze();
  CHECK(optim::clip_grad_norm({&a, &none, &b, &frozen}, 1) == Approx(std::sqrt(8.0)));
  check_close(a.grad(), {0.7071}, 1e-4);
  check_close(b.grad(), {0.7071}, 1e-4);
  check_close(frozen.grad(), {100}, exact);
  nn::Linear without_bias(2, 3, {.bias = false});  // an absent parameter has no gradient
  CHECK(optim::clip_grad_norm({&without_bias.bias}, 1) == 0);
  optim::clip_grad_value({&without_bias.bias}, 1);

  for (const double bad : {-1.0, 0.0, std::nan("")})
    CHECK_THROWS_WITH(optim::clip_grad_norm({&p}, bad), contains("[clip_grad_norm] max_norm: expected a value > 0"));
  CHECK(optim::clip_grad_norm({}, 1) == 0);
}

TEST_CASE("B12: clipped before the step, the weight moves by lr times the limit") {
  Parameter p = with_gradient({10});
  optim::SGD sgd({&p}, {.lr = 1});
  optim::clip_grad_norm({&p}, 1);
  sgd.step();
  CHECK(p.value().item() == Approx(-1).epsilon(1e-6));
}

TEST_CASE("a norm that is not finite leaves the gradients as they are") {
  Parameter p = with_gradient({1, std::numeric_limits<double>::infinity()}), q = with_gradient({3});
  CHECK(std::isinf(optim::clip_grad_norm({&p, &q}, 1)));
  check_close(q.grad(), {3}, exact);
  Parameter r = with_gradient({std::nan("")});
  CHECK(std::isnan(optim::clip_grad_norm({&r, &q}, 1)));
  check_close(q.grad(), {3}, exact);
}

TEST_CASE("the norm of a gradient whose rows cancel is a number") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Tensor x = normal({1, 30}, seed), once = normal({2, 40}, seed + 1000);
    const Tensor last = -sum(once, {0}, true);
    Parameter weight = on_device(Parameter({40, 30}, nn::init::zeros()));
    linear(concat({x, x, x}), weight).backward(concat({once, last}));
    const double norm = optim::clip_grad_norm({&weight}, 1);
    CHECK(norm >= 0);
    CHECK(norm < 1e-4);
  }
}

TEST_CASE("clipping does not write into a tensor that somebody else holds") {
  Parameter p = on_device(Parameter({2}, nn::init::zeros()));
  const Tensor mine = tensor<float>({3, 4}, {2});
  p.tensor().set_grad(mine);
  optim::clip_grad_norm({&p}, 1);
  optim::clip_grad_value({&p}, 0.7);
  check_close(p.grad(), {0.6, 0.7});
  check_close(mine, {3, 4}, exact);
}

TEST_CASE("clipping by value clamps each element; NaN stays for check_finite to see") {
  Parameter p = with_gradient({-3, 0.5, 2, std::numeric_limits<double>::infinity(), std::nan("")});
  optim::clip_grad_value({&p}, 1);
  const auto g = values(p.grad());
  check_close(tensor(std::vector<double>(g.begin(), g.begin() + 4), {4}), {-1, 0.5, 1, 1}, exact);
  CHECK(std::isnan(g[4]));
  CHECK_FALSE(p.grad().requires_grad());
  CHECK_THROWS_WITH(optim::clip_grad_value({&p}, 0), contains("[clip_grad_value] limit: expected a value > 0, got 0"));
}

TEST_CASE("gradients held as factors are clipped, checked and applied as the product would be") {
  // Few rows and a large weight: the linear layer's gradient stays factored until somebody looks.
  nn::Linear factored(64, 48), looked_at(64, 48);
  init(factored, 1);
  init(looked_at, 1);
  const Tensor x = normal({2, 64}, 1), dy = normal({2, 48}, 2);
  factored(x).backward(dy);
  looked_at(x).backward(dy);
  for (Parameter* p : looked_at.parameters()) CHECK(norm_of(p->grad()) > 0);
  const double norm = optim::clip_grad_norm(looked_at.parameters(), 0.5);
  CHECK(optim::clip_grad_norm(factored.parameters(), 0.5) == Approx(norm).epsilon(f32_rounding));
  optim::Adam one(factored.parameters(), {.lr = 0.1}), two(looked_at.parameters(), {.lr = 0.1});
  one.check_finite = two.check_finite = true;
  CHECK(one.step());
  CHECK(two.step());
  check_close(factored.weight.value(), looked_at.weight.value());
  check_close(factored.bias.value(), looked_at.bias.value());
  check_close(factored.weight.grad(), looked_at.weight.grad());
  CHECK(norm_of(factored.weight.grad()) < 0.5);
}
