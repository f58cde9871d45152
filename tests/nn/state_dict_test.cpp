#include <lamina/nn/layers.h>
#include <lamina/nn/norm.h>
#include <lamina/nn/sequential.h>

#include "nn/support.h"
#include "support/catch.h"
#include "support/random.h"

using namespace lamina;
using namespace lamina::test;

namespace {

nn::Sequential net() {
  return nn::Sequential(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::ReLU(), nn::Dropout(0.25), nn::LayerNorm(4), nn::Linear(4, 2));
}

Tensor& entry(nn::StateDict& state, const std::string& name) {
  for (auto& [key, value] : state)
    if (key == name) return value;
  FAIL("no entry " << name);
  return state.front().second;
}

void remove(nn::StateDict& state, const std::string& name) {
  std::erase_if(state, [&](const auto& item) { return item.first == name; });
}

/// Loading must throw `message` and leave the model as it was.
void check_refused(const nn::StateDict& state, const std::string& message) {
  nn::Sequential model = net();
  init(model, 8);
  const nn::StateDict before = snapshot(model);
  CHECK_THROWS_AS(model.load_state_dict(state), InputError);
  CHECK_THROWS_WITH(model.load_state_dict(state), contains(message));
  CHECK(same_state(before, snapshot(model)));
}

}  // namespace

TEST_CASE("names are PyTorch's") {
  nn::Sequential model = net();
  CHECK_THROWS_WITH(model.state_dict(), contains("[parameter] used before init(seed)"));
  init(model, 1);
  CHECK(names(model.state_dict()) ==
        "0.weight 0.bias 1.weight 1.bias 1.running_mean 1.running_var 1.num_batches_tracked 3.rng 4.weight 4.bias 5.weight 5.bias");
  const nn::StateDict state = model.state_dict();
  CHECK_FALSE(state[0].second.requires_grad());
  CHECK(state[0].second.raw_data() == model.at<nn::Linear>(0).weight.value().raw_data());  // live
}

TEST_CASE("a state dict goes round exactly, makes the model ready, and converts dtypes") {
  nn::Sequential model = net();
  init(model, 1);
  model(normal({6, 3}, 1));  // moves the running statistics and the stream
  nn::Sequential other = on_device(net());
  other.load_state_dict(model.state_dict());
  CHECK(same_state(snapshot(model), snapshot(other)));
  const Tensor x = normal({6, 3}, 2);
  CHECK(same_bits(model(x), other(x)));  // the same dropout mask, too

  other.cast(DType::f64);
  model.load_state_dict(other.state_dict());
  CHECK(model.at<nn::Linear>(0).weight.value().dtype() == DType::f32);
}

TEST_CASE("files without Dropout's stream load: a stream that was set stays, another starts from seed 0") {
  nn::Sequential model = net();
  init(model, 1);
  nn::StateDict state = snapshot(model);
  remove(state, "3.rng");
  const Tensor before = model.at<nn::Dropout>(3).rng.tensor().clone();
  model.load_state_dict(state);
  CHECK(same_bits(before, model.at<nn::Dropout>(3).rng.tensor()));
  nn::Sequential fresh = net();
  fresh.load_state_dict(state);
  CHECK(fresh.at<nn::Dropout>(3).rng.rng().key == Rng(0).stream("3.rng").key);
}

TEST_CASE("older spellings are accepted") {
  nn::Sequential model = net();
  init(model, 1);
  nn::StateDict state = snapshot(model);
  entry(state, "4.weight").fill_(3);
  entry(state, "1.bias").fill_(2);
  for (auto& [name, value] : state) {
    if (name == "1.weight" || name == "4.weight") name = name.substr(0, 2) + "gamma";
    if (name == "1.bias" || name == "4.bias") name = name.substr(0, 2) + "beta";
  }
  model.load_state_dict(state);
  check_close(model.at<nn::LayerNorm>(4).weight.value(), {3, 3, 3, 3}, exact);
  check_close(model.at<nn::BatchNorm1d>(1).bias.value(), {2, 2, 2, 2}, exact);
}

TEST_CASE("what does not fit is refused as a whole") {
  nn::Sequential model = net();
  init(model, 1);
  const nn::StateDict good = snapshot(model);

  nn::StateDict state = good;
  remove(state, "0.bias");
  check_refused(state, "[load_state_dict] missing: 0.bias");
  state.emplace_back("9.weight", zeros({2}));
  check_refused(state, "missing: 0.bias; unexpected: 9.weight");
  entry(state, "5.weight") = zeros({2, 5});
  check_refused(state, "missing: 0.bias; unexpected: 9.weight; mismatched: 5.weight: expected [2, 4], got [2, 5]");

  state = good;
  state.push_back(good[1]);
  check_refused(state, "given twice: 0.bias");
  state = good;
  entry(state, "1.num_batches_tracked") = zeros({});
  check_refused(state, "mismatched: 1.num_batches_tracked: expected i64, got f32");
  state = good;
  entry(state, "0.weight") = zeros({4, 3}, DType::u8);
  check_refused(state, "mismatched: 0.weight: expected f32, got u8");
  state = good;
  entry(state, "0.weight") = Tensor();
  check_refused(state, "0.weight: an undefined tensor");
  check_refused({}, "missing: 0.weight, 0.bias, 1.weight, 1.bias and 7 more");
}

TEST_CASE("tied parameters may come under one of their names, and must agree under several") {
  struct Tied : nn::Module {
    nn::Linear a{2, 2, {.bias = false}}, b{2, 2, {.bias = false}};
    Tied() { b.weight.tie(a.weight); }
    void members(nn::Visitor& v) override {
      v("a", a);
      v("b", b);
    }
  } model;
  const Tensor w = tensor<float>({1, 2, 3, 4}, {2, 2});
  model.load_state_dict({{"b.weight", w}});
  check_close(model.a.weight.value(), {1, 2, 3, 4}, exact);
  CHECK(names(model.state_dict()) == "a.weight b.weight");
  model.load_state_dict(snapshot(model));
  CHECK_THROWS_WITH(model.load_state_dict({{"a.weight", w}, {"b.weight", zeros({2, 2})}}),
                    contains("mismatched: b.weight: differs from a.weight, to which it is tied"));
  CHECK_THROWS_WITH(model.load_state_dict({}), contains("missing: a.weight, b.weight"));
}

TEST_CASE("a module may be given its own values under other names") {
  nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2));
  init(model, 1);
  nn::StateDict state = model.state_dict();
  const Tensor first = state[0].second.clone(), second = state[2].second.clone();
  std::swap(state[0].second, state[2].second);
  model.load_state_dict(state);
  CHECK(same_bits(model.at<nn::Linear>(0).weight.tensor(), second));
  CHECK(same_bits(model.at<nn::Linear>(1).weight.tensor(), first));
}
