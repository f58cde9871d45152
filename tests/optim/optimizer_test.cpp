#include <lamina/optim/optimizer.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include <lamina/nn/layers.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/reduce.h>

#include "support/allclose.h"
#include "support/catch.h"
#include "support/golden.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;
using nn::Parameter;

namespace {

Parameter parameter(double value, DType dtype = DType::f64) { return on_device(Parameter({1}, nn::init::constant(value), dtype)); }

void give(Parameter& p, double gradient) { p.tensor().set_grad(full(p.shape(), gradient, p.tensor().dtype())); }

double value(const Parameter& p) { return p.value().item(); }

/// The parameter after each step on these gradients.
std::vector<double> trajectory(optim::Optimizer& optimizer, Parameter& p, const std::vector<double>& gradients) {
  std::vector<double> result;
  for (const double gradient : gradients) {
    give(p, gradient);
    CHECK(optimizer.step());
    result.push_back(value(p));
  }
  return result;
}

void check_trajectory(optim::Optimizer& optimizer, Parameter& p, const std::vector<double>& gradients, const std::vector<double>& expected,
                      double tolerance = six_digits) {
  check_close(tensor(trajectory(optimizer, p, gradients), {static_cast<int64_t>(gradients.size())}), expected, tolerance);
}

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("D01: Adam's eps is outside the root, after the bias correction") {
  Parameter p = parameter(0);
  optim::Adam adam({&p}, {.lr = 1e-3});
  give(p, 1e-8);
  adam.step();
  CHECK(value(p) == Approx(-5.0e-4).epsilon(1e-9));
  give(p, 0);
  for (const double eps : {0.0, -1e-8, not_a_number})
    CHECK_THROWS_WITH(optim::Adam({&p}, {.eps = eps}), contains("[adam] eps: expected a finite value > 0"));
}

TEST_CASE("D02: Adam's step count starts at 1 and is not shared between parameters") {
  Parameter a = parameter(0), b = parameter(0), c = parameter(0);
  optim::Adam adam({&a, &b, &c}, {.lr = 1e-3});
  for (int step = 1; step <= 3; ++step) {
    for (Parameter* p : {&a, &b, &c}) give(*p, 1);
    adam.step();
    for (const Parameter* p : {&a, &b, &c}) CHECK(value(*p) == Approx(-0.001 * step).epsilon(1e-6));
  }
  Parameter p = parameter(0);
  optim::Adam other({&p}, {.lr = 0.1});
  check_trajectory(other, p, {1, -1, 0.5}, {-0.1, -0.0947368, -0.1122094});
}

TEST_CASE("D03: AdamW's decay is decoupled, times lr, before the update; Adam's is added to the gradient") {
  Parameter p = parameter(1), q = parameter(1), r = parameter(1), s = parameter(1);
  optim::AdamW adamw({&p}, {.lr = 0.1, .weight_decay = 0.01});
  check_trajectory(adamw, p, {0.5}, {0.899000002}, 1e-9);
  optim::Adam adam({&q}, {.lr = 0.1, .weight_decay = 0.01});
  check_trajectory(adam, q, {0.5}, {0.900000002}, 1e-9);
  optim::AdamW strong({&r}, {.lr = 0.1, .weight_decay = 0.1});
  check_trajectory(strong, r, {0.5, 0.5, 0.5}, {0.890000, 0.781100, 0.673289});
  optim::AdamW by_default({&s}, {.lr = 0.1});  // PyTorch's 0.01, also where other options are given
  check_trajectory(by_default, s, {0.5}, {0.899000002}, 1e-9);
}

TEST_CASE("D05: Nesterov momentum in PyTorch's form") {
  Parameter p = parameter(0), q = parameter(0), r = parameter(0);
  optim::SGD nesterov({&p}, {.lr = 0.1, .momentum = 0.9, .nesterov = true});
  check_trajectory(nesterov, p, {1, 1, 1}, {-0.19, -0.461, -0.8049}, f64_rounding);
  optim::SGD plain({&q}, {.lr = 0.1, .momentum = 0.9});
  check_trajectory(plain, q, {1, 1, 1}, {-0.1, -0.29, -0.561}, f64_rounding);
  optim::SGD none({&r}, {.lr = 0.1});
  check_trajectory(none, r, {1, 1, 1}, {-0.1, -0.2, -0.3}, f64_rounding);
}

TEST_CASE("D07: a parameter without gradient is left alone; a zero gradient is not that") {
  const auto run = [](optim::Optimizer& optimizer, Parameter& p, bool zero) {
    give(p, 1);
    optimizer.step();
    CHECK(value(p) == Approx(0.89).epsilon(1e-7));
    optimizer.zero_grad();
    if (zero) give(p, 0);
    optimizer.step();
    return value(p);
  };
  Parameter a = parameter(1), b = parameter(1), c = parameter(1), d = parameter(1);
  optim::SGD sgd_a({&a}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}), sgd_b({&b}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  CHECK(run(sgd_a, a, false) == Approx(0.89).epsilon(1e-9));
  CHECK(run(sgd_b, b, true) == Approx(0.7821).epsilon(1e-9));
  optim::AdamW adam_c({&c}, {.lr = 0.1, .weight_decay = 0.1}), adam_d({&d}, {.lr = 0.1, .weight_decay = 0.1});
  CHECK(run(adam_c, c, false) == Approx(0.89).epsilon(1e-7));
  CHECK(run(adam_d, d, true) == Approx(0.8140942).epsilon(1e-6));
  // A frozen parameter is left alone even where a gradient from before is still there.
  a.freeze();
  give(a, 5);
  const double before = value(a);
  sgd_a.step();
  CHECK(value(a) == before);
}

TEST_CASE("D12: with check_finite a bad gradient stops the whole step") {
  for (const double bad : {not_a_number, std::numeric_limits<double>::infinity()}) {
    Parameter a = parameter(1), b = parameter(1, DType::f32);
    optim::Adam adam(std::vector<Parameter*>{&a, &b});
    adam.check_finite = true;
    give(a, 1);
    give(b, bad);
    CHECK_FALSE(adam.step());
    CHECK(value(a) == 1);
    CHECK(value(b) == 1);
    CHECK(adam.state().empty());
    give(b, 1);
    CHECK(adam.step());
    CHECK(value(a) == Approx(0.999));
  }
}

TEST_CASE("options and parameters out of range are refused with one line") {
  Parameter p = parameter(0), q = parameter(0), none;
  const auto sgd = [&](optim::SGDOptions options) { optim::SGD({&p}, options); };
  const auto adam = [&](optim::AdamOptions options) { optim::Adam({&p}, options); };
  CHECK_THROWS_WITH(sgd({.lr = -1}), "[sgd] lr: expected a finite value >= 0, got -1");
  CHECK_THROWS_WITH(sgd({.lr = not_a_number}), contains("[sgd] lr"));
  CHECK_THROWS_WITH(sgd({.momentum = 1}), contains("[sgd] momentum: expected a value in [0, 1), got 1"));
  CHECK_THROWS_WITH(sgd({.dampening = -0.1}), contains("[sgd] dampening"));
  CHECK_THROWS_WITH(sgd({.weight_decay = -1}), contains("[sgd] weight_decay"));
  CHECK_THROWS_WITH(sgd({.nesterov = true}), contains("[sgd] nesterov: needs momentum > 0 and dampening = 0, got 0 and 0"));
  CHECK_THROWS_WITH(sgd({.momentum = 0.9, .dampening = 0.5, .nesterov = true}), contains("nesterov"));
  CHECK_THROWS_WITH(adam({.beta1 = 1.5}), contains("[adam] beta1: expected a value in [0, 1), got 1.5"));
  CHECK_THROWS_WITH(adam({.beta2 = -0.1}), contains("[adam] beta2"));
  CHECK_THROWS_WITH(adam({.weight_decay = -1}), contains("[adam] weight_decay"));
  CHECK_THROWS_WITH(optim::AdamW({&p}, {.lr = -1}), contains("[adamw] lr"));
  CHECK_THROWS_WITH(optim::SGD(std::vector<Parameter*>{}), "[sgd] no parameters to optimise");
  CHECK_THROWS_WITH(optim::SGD(std::vector<Parameter*>{&p, nullptr}), contains("[sgd] parameter 1 is absent"));
  CHECK_THROWS_WITH(optim::SGD(std::vector<Parameter*>{&p, &none}), contains("[sgd] parameter 1 is absent"));
  CHECK_THROWS_WITH(optim::SGD({&p, &q, &p}), "[sgd] parameters 0 and 2 are the same tensor [1]; list tied parameters once");
  q.tie(p);
  CHECK_THROWS_WITH(optim::Adam(std::vector<Parameter*>{&p, &q}), contains("[adam] parameters 0 and 1 are the same tensor"));
  optim::SGD good({&p});
  CHECK_THROWS_WITH(good.set_lr(-1), contains("[sgd] lr"));
  good.set_lr(0.5);
  CHECK(good.lr() == 0.5);
  CHECK_THROWS_WITH(optim::SGD(std::vector<optim::Group>{{.parameters = {&p}, .lr_factor = -1}}), contains("lr_factor of a group"));
}

TEST_CASE("groups have their own rate and decay") {
  Parameter a = parameter(1), b = parameter(1), c = parameter(1);
  optim::SGD sgd({{.parameters = {&a}}, {.parameters = {&b}, .lr_factor = 0.5}, {.parameters = {&c}, .weight_decay = 0}},
                 {.lr = 0.1, .weight_decay = 0.1});
  for (Parameter* p : {&a, &b, &c}) give(*p, 1);
  sgd.step();
  CHECK(value(a) == Approx(0.89));
  CHECK(value(b) == Approx(0.945));
  CHECK(value(c) == Approx(0.9));
  sgd.zero_grad();
  for (const Parameter* p : {&a, &b, &c}) CHECK_FALSE(p->grad().defined());

  Parameter d = parameter(0), e = parameter(0);
  optim::Adam adam({{.parameters = {&d}}, {.parameters = {&e}, .lr_factor = 0.5}}, {.lr = 0.1});
  for (Parameter* p : {&d, &e}) give(*p, 3);
  adam.step();
  CHECK(value(d) == Approx(-0.1));
  CHECK(value(e) == Approx(-0.05));

  nn::Linear linear(2, 3);
  const auto groups = optim::no_decay_on_vectors(linear.parameters());
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].parameters == std::vector<Parameter*>{&linear.weight});
  CHECK(groups[1].parameters == std::vector<Parameter*>{&linear.bias});
  CHECK(groups[1].weight_decay == 0);
  CHECK(groups[0].weight_decay < 0);
}

TEST_CASE("ten steps of every optimiser are PyTorch's") {
  const Golden golden("optimizers");
  using Make = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Parameter*>&, const std::string&)>;
  const auto number = [&](const std::string& name, const char* option) { return golden.number(name + "." + option); };
  const Make sgd = [&](const auto& p, const std::string& name) {
    return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = number(name, "lr"),
                                                             .momentum = number(name, "momentum"),
                                                             .dampening = number(name, "dampening"),
                                                             .weight_decay = number(name, "weight_decay"),
                                                             .nesterov = number(name, "nesterov") != 0});
  };
  const auto adam_options = [&](const std::string& name) {
    return optim::AdamOptions{.lr = number(name, "lr"),
                              .beta1 = number(name, "beta1"),
                              .beta2 = number(name, "beta2"),
                              .eps = number(name, "eps"),
                              .weight_decay = number(name, "weight_decay")};
  };
  const Make adam = [&](const auto& p, const std::string& name) { return std::make_unique<optim::Adam>(p, adam_options(name)); };
  const Make adamw = [&](const auto& p, const std::string& name) { return std::make_unique<optim::AdamW>(p, adam_options(name)); };
  const std::vector<std::pair<std::string, Make>> cases = {{"sgd", sgd},   {"sgd_momentum", sgd}, {"sgd_dampening", sgd}, {"sgd_nesterov", sgd},
                                                           {"adam", adam}, {"adam_decay", adam},  {"adamw", adamw},       {"adamw_decay", adamw}};
  const int64_t skipped = golden("skipped_step_of_b").to_vector<int64_t>()[0];
  for (const auto& [name, make] : cases)
    for (const DType dtype : {DType::f64, DType::f32}) {
      INFO(name << " " << to_string(dtype));
      Parameter a = on_device(Parameter({3, 4}, nn::init::zeros(), dtype)), b = on_device(Parameter({5}, nn::init::zeros(), dtype));
      a.set(golden("start.a"));
      b.set(golden("start.b"));
      const auto optimizer = make({&a, &b}, name);
      for (int64_t step = 0; step < 10; ++step) {
        for (Parameter* p : {&a, &b}) {
          const std::string letter = p == &a ? "a" : "b";
          const auto all = values(golden("grad." + letter));
          const auto begin = all.begin() + step * p->shape().numel();
          p->tensor().set_grad(tensor(std::vector<double>(begin, begin + p->shape().numel()), p->shape()).cast(dtype));
        }
        if (step == skipped) b.tensor().zero_grad();
        optimizer->step();
        for (Parameter* p : {&a, &b}) {
          const auto all = values(golden(name + "." + (p == &a ? "a" : "b")));
          const auto begin = all.begin() + step * p->shape().numel();
          check_close(p->value(), std::vector<double>(begin, begin + p->shape().numel()), dtype == DType::f64 ? f64_rounding : 10 * f32_rounding);
        }
      }
    }
}

TEST_CASE("an optimiser step between forward and backward is refused") {
  nn::Linear linear(3, 2);
  init(linear, 1);
  optim::SGD sgd(linear.parameters());
  Tensor x = normal({4, 3}, 1).set_requires_grad();
  const Tensor y = linear(x);
  for (Parameter* p : linear.parameters()) p->tensor().set_grad(ones(p->shape()));
  sgd.step();
  CHECK_THROWS_WITH(y.backward(normal({4, 2}, 2)), contains("was changed since (by an optimiser step"));
}

TEST_CASE("moments follow a parameter that is cast") {
  for (const bool with_adam : {true, false}) {
    Parameter p = parameter(1, DType::f32), q = parameter(1);
    std::unique_ptr<optim::Optimizer> cast, reference;
    if (with_adam) {
      cast = std::make_unique<optim::Adam>(std::vector<Parameter*>{&p}, optim::AdamOptions{.lr = 0.1});
      reference = std::make_unique<optim::Adam>(std::vector<Parameter*>{&q}, optim::AdamOptions{.lr = 0.1});
    } else {
      cast = std::make_unique<optim::SGD>(std::vector<Parameter*>{&p}, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
      reference = std::make_unique<optim::SGD>(std::vector<Parameter*>{&q}, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    }
    trajectory(*cast, p, {1, 0.5});
    trajectory(*reference, q, {1, 0.5});
    p.cast(DType::f64);
    trajectory(*cast, p, {-0.25});
    trajectory(*reference, q, {-0.25});
    CHECK(value(p) == Approx(value(q)).epsilon(f32_rounding));
    CHECK(p.value().dtype() == DType::f64);
  }
}
