#pragma once
// Learning-rate schedules: pure functions from progress to a factor, so that a resumed run continues exactly.

#include <cstdint>
#include <string>

namespace lamina::optim {

struct Schedule {
  enum class Kind { constant, step, cosine, linear_warmup, inverse_sqrt };
  Kind kind = Kind::constant;
  int64_t warmup = 0;  // steps of linear warm-up (any kind): factor (t + 1) / warmup while t < warmup
  int64_t period = 1;  // step: units between drops; cosine, linear_warmup: units until the end
  double gamma = 0.1;  // step: factor of a drop
  double floor = 0.0;  // cosine, linear_warmup: the last factor

  /// The factor on the base rate at time t (0, 1, ...; epochs or steps, as the caller counts).
  /// constant: 1. step: gamma^(t / period). cosine: floor + (1 - floor)(1 + cos(pi t / period)) / 2, floor after the end.
  /// linear_warmup: after the warm-up 1 falling linearly to floor at t = period. inverse_sqrt: sqrt(max(warmup, 1) / max(t, warmup, 1)) (Vaswani et
  /// al. 2017). Throws Error for t < 0, warmup < 0, period < 1, a negative gamma, or a floor outside [0, 1].
  double factor(int64_t t) const;

  /// "constant", "step:30:0.1" (period, gamma), "cosine:100" and "linear:100" (period; a floor may follow: "cosine:100:0.01"), "inverse_sqrt"; with
  /// "warmup=500," before. Throws InputError listing the forms. str() is the inverse.
  static Schedule parse(const std::string& text);
  std::string str() const;
};

}  // namespace lamina::optim
