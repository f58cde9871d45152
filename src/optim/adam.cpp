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
      t_(entries_.size()),
      m_(entries_.size()),
      v_(entries_.size()) {
  check_fraction(name, "beta1", options.beta1);
  check_fraction(name, "beta2", options.beta2);
  // With eps = 0 a gradient of 0 would give 0/0.
  if (!(options.eps > 0 && std::isfinite(options.eps))) fail(name, "eps: expected a finite value > 0, got {}", options.eps);
}

AdamW::AdamW(const std::vector<nn::Parameter*>& parameters, AdamOptions options) : AdamW(std::vector<Group>{{.parameters = parameters}}, options) {}
AdamW::AdamW(std::vector<Group> groups, AdamOptions options) : Adam("adamw", std::move(groups), options, true) {}

bool Adam::step() {
  if (check_finite && !gradients_finite()) return false;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const detail::Gradient* gradient = gradient_of(*entry.parameter);
    if (!gradient) continue;
    Tensor& p = entry.parameter->tensor();
    follow(p, m_[i]);
    follow(p, v_[i]);
    const kernels::StepState state{.t = ++t_[i], .lr = lr_ * entry.lr_factor, .grad_scale = gradient->scale};
    const kernels::AdamSpec spec{
        .beta1 = options_.beta1, .beta2 = options_.beta2, .eps = options_.eps, .weight_decay = entry.weight_decay, .decoupled = decoupled_};
    with_float(name_, p.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const auto& optimizer = kernels::optimizer<T>(p.device());
      T *const values = p.mutable_data<T>(), *const m = m_[i].mutable_data<T>(), *const v = v_[i].mutable_data<T>();
      if (gradient->dense.defined())
        optimizer->adam(&state, spec, p.numel(), values, gradient->dense.data<T>(), m, v);
      else
        optimizer->adam(&state, spec, rank_update<T>(*gradient, p.shape()), values, m, v);
    });
  }
  return true;
}

nn::StateDict Adam::state() const {
  nn::StateDict state;
  for (size_t i = 0; i < t_.size(); ++i) {
    if (t_[i] == 0) continue;
    state.emplace_back(fmt::format("step.{}", i), Tensor::from({t_[i]}, {}));
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
  t_ = std::move(t);
  m_ = std::move(m);
  v_ = std::move(v);
}

}  // namespace lamina::optim
