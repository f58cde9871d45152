// Saving and restoring optimisers.

#include <memory>

#include <lamina/optim/optimizer.h>

#include "nn/support.h"
#include "support/allclose.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;
using nn::Parameter;

namespace {

struct Pair {
  Parameter a = on_device(Parameter({3, 2}, nn::init::ones())), b = on_device(Parameter({4}, nn::init::ones()));
  std::vector<Parameter*> list() { return {&a, &b}; }
  void give(uint64_t seed, bool both = true) {
    a.tensor().set_grad(normal({3, 2}, seed));
    b.tensor().set_grad(both ? normal({4}, seed + 100) : Tensor());
  }
};

nn::StateDict copy_of(const nn::StateDict& state) {
  nn::StateDict copy;
  for (const auto& [name, value] : state) copy.emplace_back(name, value.clone());
  return copy;
}

template <class Optimizer, class Options>
void check_round_trip(const Options& options, const std::string& expected_names) {
  Pair one, two;
  Optimizer first(one.list(), options), second(two.list(), options);
  CHECK(first.state().empty());
  for (uint64_t step = 0; step < 3; ++step) {
    one.give(step, step > 0);
    first.step();
  }
  CHECK(names(first.state()) == expected_names);
  two.a.set(one.a.value());
  two.b.set(one.b.value());
  second.load_state(copy_of(first.state()));
  CHECK(same_state(first.state(), second.state()));
  for (uint64_t step = 3; step < 6; ++step) {
    one.give(step);
    two.give(step);
    first.step();
    second.step();
  }
  CHECK(same_bits(one.a.value(), two.a.value()));
  CHECK(same_bits(one.b.value(), two.b.value()));
}

}  // namespace

TEST_CASE("an optimiser continues exactly from its state") {
  check_round_trip<optim::SGD>(optim::SGDOptions{.lr = 0.1}, "");
  check_round_trip<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2}, "momentum_buffer.0 momentum_buffer.1");
  check_round_trip<optim::Adam>(optim::AdamOptions{.lr = 0.1}, "step.0 exp_avg.0 exp_avg_sq.0 step.1 exp_avg.1 exp_avg_sq.1");
  check_round_trip<optim::AdamW>(optim::AdamOptions{.lr = 0.1}, "step.0 exp_avg.0 exp_avg_sq.0 step.1 exp_avg.1 exp_avg_sq.1");
}

TEST_CASE("step counts are per parameter, and a parameter without steps has no state") {
  Pair pair;
  optim::Adam adam(pair.list());
  pair.give(1, false);
  adam.step();
  CHECK(names(adam.state()) == "step.0 exp_avg.0 exp_avg_sq.0");
  pair.give(2);
  adam.step();
  const nn::StateDict state = adam.state();
  CHECK(state[0].second.item() == 2);
  CHECK(state[3].second.item() == 1);
  adam.load_state({});
  CHECK(adam.state().empty());
}

TEST_CASE("a state that does not fit is refused as a whole") {
  Pair pair;
  optim::Adam adam(pair.list());
  pair.give(1);
  adam.step();
  const nn::StateDict good = copy_of(adam.state());
  const auto refused = [&](nn::StateDict state, const std::string& message) {
    CHECK_THROWS_AS(adam.load_state(state), InputError);
    CHECK_THROWS_WITH(adam.load_state(state), contains(message));
    CHECK(same_state(good, adam.state()));
  };
  nn::StateDict state = good;
  state.emplace_back("momentum_buffer.0", zeros({3, 2}));
  refused(state, "[adam] load_state: unexpected momentum_buffer.0");
  state = good;
  state[1].second = zeros({2, 3});
  refused(state, "[adam] load_state: exp_avg.0: expected [3, 2], got [2, 3]");
  state = good;
  state[1].second = zeros({3, 2}, DType::i64);
  refused(state, "exp_avg.0: expected f32 or f64, got i64");
  state = good;
  state[0].second = scalar(1);
  refused(state, "step.0: expected one i64, got f32 []");
  state = good;
  state[0].second = scalar(0, DType::i64);
  refused(state, "step.0: expected a count >= 1, got 0");
  state = good;
  state.erase(state.begin() + 2);
  refused(state, "step.0, exp_avg.0 and exp_avg_sq.0 must come together");
  state = good;
  state.erase(state.begin());
  refused(state, "step.0, exp_avg.0 and exp_avg_sq.0 must come together");
  state = good;
  state.push_back(good[0]);
  refused(state, "step.0 is given twice");
  refused({{"step.0", Tensor()}}, "step.0 is an undefined tensor");
  optim::SGD plain(pair.list());
  CHECK_THROWS_WITH(plain.load_state({{"momentum_buffer.0", zeros({3, 2})}}), contains("[sgd] load_state: unexpected momentum_buffer.0"));
}

TEST_CASE("a loaded state is a copy, in the parameter's dtype") {
  Pair pair;
  pair.a.cast(DType::f64);
  optim::SGD sgd(pair.list(), {.momentum = 0.5});
  Tensor velocity = ones({3, 2});
  sgd.load_state({{"momentum_buffer.0", velocity}});
  velocity.fill_(7);
  REQUIRE(sgd.state().size() == 1);
  CHECK(sgd.state()[0].second.dtype() == DType::f64);
  check_close(sgd.state()[0].second, {1, 1, 1, 1, 1, 1}, exact);
}
