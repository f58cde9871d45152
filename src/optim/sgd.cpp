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

bool SGD::step() {
  if (check_finite && !gradients_finite()) return false;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const detail::Gradient* gradient = gradient_of(*entry.parameter);
    if (!gradient) continue;
    Tensor& p = entry.parameter->tensor();
    const bool with_momentum = options_.momentum != 0, first = !velocity_[i].defined();
    if (with_momentum) follow(p, velocity_[i]);
    const kernels::StepState state{.lr = lr_ * entry.lr_factor, .grad_scale = gradient->scale};
    const kernels::SgdSpec spec{.momentum = options_.momentum,
                                .dampening = options_.dampening,
                                .weight_decay = entry.weight_decay,
                                .nesterov = options_.nesterov,
                                .first = first};
    with_float("sgd", p.dtype(), [&](auto zero) {
      using T = decltype(zero);
      T* velocity = with_momentum ? velocity_[i].mutable_data<T>() : nullptr;
      const auto& optimizer = kernels::optimizer<T>(p.device());
      if (gradient->dense.defined())
        optimizer->sgd(&state, spec, p.numel(), p.mutable_data<T>(), gradient->dense.data<T>(), velocity);
      else
        optimizer->sgd(&state, spec, rank_update<T>(*gradient, p.shape()), p.mutable_data<T>(), velocity);
    });
  }
  return true;
}

nn::StateDict SGD::state() const {
  nn::StateDict state;
  for (size_t i = 0; i < velocity_.size(); ++i)
    if (velocity_[i].defined()) state.emplace_back(fmt::format("momentum_buffer.{}", i), velocity_[i].detach());
  return state;
}

void SGD::load_state(const nn::StateDict& state) {
  StateReader reader("sgd", state);
  std::vector<Tensor> velocity(entries_.size());
  if (options_.momentum != 0)
    for (size_t i = 0; i < entries_.size(); ++i) velocity[i] = reader.take_moment("momentum_buffer", i, entries_[i].parameter->tensor());
  reader.finish();
  velocity_ = std::move(velocity);
}

}  // namespace lamina::optim
