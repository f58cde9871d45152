#include <lamina/optim/optimizer.h>

#include "kernels/kernels.h"
#include "optim/checks.h"

namespace lamina::optim {

Adam::Adam(const std::vector<nn::Parameter*>& parameters, AdamOptions options) : Adam(std::vector<Group>{{.parameters = parameters}}, options) {}
Adam::Adam(std::vector<Group> groups, AdamOptions options) : Adam("adam", std::move(groups), options, false) {}

Adam::Adam(const char* name, std::vector<Group> groups, AdamOptions options, bool decoupled)
    : Optimizer(name, std::move(groups), options.lr, options.weight_decay.value_or(decoupled ? 0.01 : 0.0)),
      options_(options),
      decoupled_(decoupled),
      m_(entries_.size()),
      v_(entries_.size()) {
  check_fraction(name, "beta1", options.beta1);
  check_fraction(name, "beta2", options.beta2);
  // With eps = 0 a gradient of 0 would give 0/0.
  if (!(options.eps > 0 && std::isfinite(options.eps))) fail(name, "eps: expected a finite value > 0, got {}", options.eps);
}

AdamW::AdamW(const std::vector<nn::Parameter*>& parameters, AdamOptions options) : AdamW(std::vector<Group>{{.parameters = parameters}}, options) {}
AdamW::AdamW(std::vector<Group> groups, AdamOptions options) : Adam("adamw", std::move(groups), options, true) {}

void Adam::update(Device device, const void* state) {
  const kernels::AdamSpec spec{.beta1 = options_.beta1, .beta2 = options_.beta2, .eps = options_.eps, .decoupled = decoupled_};
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const Items<T> items(entries_, [&](size_t i, const Tensor& p, kernels::OptimizerItem<T>& item) {
      item.first = follow(p, m_[i]).template mutable_data<T>();
      item.second = follow(p, v_[i]).template mutable_data<T>();
      item.missed = missed_[i];
    });
    if (!items.list.empty()) kernels::optimizer<T>(device)->adam(static_cast<const kernels::StepState*>(state), spec, items.list);
  };
  run(0.0F);
  run(0.0);
}

nn::StateDict Adam::state() const {
  nn::StateDict state;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (steps_of(i) == 0) continue;
    state.emplace_back(fmt::format("step.{}", i), Tensor::from({steps_of(i)}, {}));
    state.emplace_back(fmt::format("exp_avg.{}", i), m_[i].detach());
    state.emplace_back(fmt::format("exp_avg_sq.{}", i), v_[i].detach());
  }
  return state;
}

void Adam::load_state(const nn::StateDict& state) {
  StateReader reader(name_, state);
  std::vector<int64_t> t(entries_.size());
  std::vector<Tensor> m(entries_.size()), v(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Tensor& p = entries_[i].parameter->tensor();
    t[i] = reader.take_count("step", i);
    m[i] = reader.take_moment("exp_avg", i, p);
    v[i] = reader.take_moment("exp_avg_sq", i, p);
    if ((t[i] > 0) != m[i].defined() || m[i].defined() != v[i].defined())
      fail_input(name_, "load_state: step.{0}, exp_avg.{0} and exp_avg_sq.{0} must come together", i);
  }
  reader.finish();
  set_steps(t);
  m_ = std::move(m);
  v_ = std::move(v);
}

}  // namespace lamina::optim
