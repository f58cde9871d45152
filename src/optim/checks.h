#pragma once
// What the optimisers share: checks of options, which gradients count, and moments that follow their parameter. Private to src/optim.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <lamina/nn/module.h>

#include "core/format.h"
#include "core/tensor_impl.h"
#include "kernels/kernels.h"

namespace lamina::optim {

inline double check_not_negative(const char* where, const char* option, double value) {
  if (!(value >= 0 && std::isfinite(value))) fail(where, "{}: expected a finite value >= 0, got {}", option, value);
  return value;
}

/// Momentum and betas.
inline double check_fraction(const char* where, const char* option, double value) {
  if (!(value >= 0 && value < 1)) fail(where, "{}: expected a value in [0, 1), got {}", option, value);
  return value;
}

/// The gradient that counts, dense or as factors; null without one, for an absent parameter, and for a frozen parameter, whose tensor may still hold
/// one from before.
inline detail::Gradient* gradient_of(const nn::Parameter& parameter) {
  if (!parameter.defined()) return nullptr;
  detail::Gradient& gradient = parameter.tensor().impl()->gradient;
  return parameter.frozen() || !gradient.defined() ? nullptr : &gradient;
}

/// The rows of a factored gradient, for the fused updates.
template <class T>
kernels::RankUpdate<T> rank_update(const detail::Gradient& gradient, const Shape& shape) {
  static_assert(kernels::RankUpdate<T>::max_rows >= detail::max_factor_rows);
  kernels::RankUpdate<T> update{.out = shape[0], .in = shape[1]};
  for (const detail::Factors& pair : gradient.factors) {
    for (int64_t row = 0; row < pair.x.size(0); ++row, ++update.rows) {
      update.dy[static_cast<size_t>(update.rows)] = pair.dy.data<T>() + row * update.out;
      update.x[static_cast<size_t>(update.rows)] = pair.x.data<T>() + row * update.in;
    }
  }
  return update;
}

/// The items of an update by element type, with what their products point to.
template <class T>
struct Items {
  std::vector<kernels::OptimizerItem<T>> list;
  std::vector<kernels::RankUpdate<T>> products;

  /// Of an optimiser's entries, those with a gradient whose parameter is a T; keep(i, parameter, item) fills in what the optimiser keeps for entry i.
  template <class Entries, class F>
  Items(const Entries& entries, F&& keep) {
    list.reserve(entries.size());
    products.reserve(entries.size());  // their addresses must stay
    for (size_t i = 0; i < entries.size(); ++i) {
      const detail::Gradient* const gradient = gradient_of(*entries[i].parameter);
      if (!gradient || entries[i].parameter->tensor().dtype() != dtype_of<T>()) continue;
      Tensor& p = entries[i].parameter->tensor();
      kernels::OptimizerItem<T>& item = list.emplace_back();
      item.n = p.numel();
      item.p = p.mutable_data<T>();
      if (gradient->dense.defined())
        item.g = gradient->dense.template data<T>();
      else
        item.product = &products.emplace_back(rank_update<T>(*gradient, p.shape()));
      item.grad_scale = gradient->scale;
      item.lr_factor = entries[i].lr_factor;
      item.weight_decay = entries[i].weight_decay;
      keep(i, p, item);
    }
  }
};

/// Gives a moment the dtype and device of its parameter, which may have been cast or moved since; a fresh one is zero.
inline Tensor& follow(const Tensor& parameter, Tensor& moment) {
  if (!moment.defined()) moment = Tensor::zeros(parameter.shape(), parameter.dtype(), parameter.device());
  if (moment.dtype() != parameter.dtype()) moment = moment.cast(parameter.dtype());
  if (!(moment.device() == parameter.device())) moment = moment.to(parameter.device());
  return moment;
}

/// Reads entries "<kind>.<index>" from a saved state and finally refuses what nobody asked for.
class StateReader {
 public:
  StateReader(const char* where, const nn::StateDict& state) : where_(where) {
    for (const auto& [name, value] : state) {
      if (!value.defined()) fail_input(where, "load_state: {} is an undefined tensor", name);
      if (!entries_.emplace(name, value).second) fail_input(where, "load_state: {} is given twice", name);
    }
  }

  /// A copy in the parameter's dtype and device; undefined when absent.
  Tensor take_moment(const char* kind, size_t index, const Tensor& parameter) {
    const std::string name = fmt::format("{}.{}", kind, index);
    const Tensor value = take(name);
    if (!value.defined()) return value;
    if (value.shape() != parameter.shape()) fail_input(where_, "load_state: {}: expected {}, got {}", name, parameter.shape(), value.shape());
    if (!is_float(value.dtype())) fail_input(where_, "load_state: {}: expected f32 or f64, got {}", name, value.dtype());
    Tensor moment = value.clone();
    follow(parameter, moment);
    return moment;
  }

  /// A count of steps; 0 when absent.
  int64_t take_count(const char* kind, size_t index) {
    const std::string name = fmt::format("{}.{}", kind, index);
    const Tensor value = take(name);
    if (!value.defined()) return 0;
    if (value.dtype() != DType::i64 || value.numel() != 1)
      fail_input(where_, "load_state: {}: expected one i64, got {} {}", name, value.dtype(), value.shape());
    const int64_t count = value.to_vector<int64_t>()[0];
    if (count < 1) fail_input(where_, "load_state: {}: expected a count >= 1, got {}", name, count);
    return count;
  }

  void finish() const {
    if (!entries_.empty()) fail_input(where_, "load_state: unexpected {} ({} entries in all)", entries_.begin()->first, entries_.size());
  }

 private:
  Tensor take(const std::string& name) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) return {};
    Tensor value = std::move(found->second);
    entries_.erase(found);
    return value;
  }

  const char* where_;
  std::map<std::string, Tensor> entries_;
};

}  // namespace lamina::optim
