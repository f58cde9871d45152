#include <lamina/optim/optimizer.h>

#include "kernels/kernels.h"
#include "optim/checks.h"

namespace lamina::optim {

SGD::SGD(const std::vector<nn::Parameter*>& parameters, SGDOptions options) : SGD(std::vector<Group>{{.parameters = parameters}}, options) {}

SGD::SGD(std::vector<Group> groups, SGDOptions options)
    : Optimizer("sgd", std::move(groups), options.lr, options.weight_decay), options_(options), velocity_(entries_.size()) {
  check_fraction("sgd", "momentum", options.momentum);
  if (!(options.dampening >= 0 && options.dampening <= 1)) fail("sgd", "dampening: expected a value in [0, 1], got {}", options.dampening);
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    fail("sgd", "nesterov: needs momentum > 0 and dampening = 0, got {} and {}", options.momentum, options.dampening);
}

void SGD::update(Device device, const void* state) {
  const kernels::SgdSpec spec{.momentum = options_.momentum, .dampening = options_.dampening, .nesterov = options_.nesterov};
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const Items<T> items(entries_, [&](size_t i, const Tensor& p, kernels::OptimizerItem<T>& item) {
      if (options_.momentum == 0) return;
      item.first = follow(p, velocity_[i]).template mutable_data<T>();
      item.fresh = steps_of(i) == 1;
    });
    if (!items.list.empty()) kernels::optimizer<T>(device)->sgd(static_cast<const kernels::StepState*>(state), spec, items.list);
  };
  run(0.0F);
  run(0.0);
}

nn::StateDict SGD::state() const {
  nn::StateDict state;
  for (size_t i = 0; i < velocity_.size(); ++i)
    if (velocity_[i].defined() && steps_of(i) > 0) state.emplace_back(fmt::format("momentum_buffer.{}", i), velocity_[i].detach());
  return state;
}

void SGD::load_state(const nn::StateDict& state) {
  StateReader reader("sgd", state);
  std::vector<Tensor> velocity(entries_.size());
  if (options_.momentum != 0)
    for (size_t i = 0; i < entries_.size(); ++i) velocity[i] = reader.take_moment("momentum_buffer", i, entries_[i].parameter->tensor());
  reader.finish();
  std::vector<int64_t> steps;
  for (const Tensor& moment : velocity) steps.push_back(moment.defined() ? 1 : 0);  // the next one is not the first
  set_steps(steps);
  velocity_ = std::move(velocity);
}

}  // namespace lamina::optim
