#include <cmath>

#include "kernels/cpu/recurrent_parts.h"
#include "kernels/kernels.h"

namespace lamina::kernels {

RecurrentSums::RecurrentSums(const RecurrentSpec& spec) : count(0) {
  constexpr int64_t gap = 80;  // so that sums whose widths are multiples of a page do not crowd into the same cache lines
  const auto take = [&](bool present, int64_t width) {
    const int64_t begin = present ? count : -1;
    if (present) count += width + gap;
    return begin;
  };
  const int64_t width = spec.width();
  bias = take(true, width);
  n_bias = take(spec.cell == Cell::gru, spec.hidden);
  gain_ih = take(spec.norm == TermNorm::terms || spec.norm == TermNorm::columns, width);
  gain_hh = take(spec.norm != TermNorm::none, width);
  gain_c = take(spec.normalise_c, spec.hidden);
  bias_c = take(spec.normalise_c, spec.hidden);
}

namespace {

template <class T>
struct CpuRecurrent final : RecurrentKernels<T> {
  void forward(const RecurrentForward<T>& work) const override {
    if (work.steps.first < work.steps.last && work.spec.hidden > 0 && work.steps.batch > 0) recurrent_forward_part<T>().run(work);
  }
  void backward(const RecurrentBackward<T>& work) const override {
    if (work.steps.first < work.steps.last && work.spec.hidden > 0 && work.steps.batch > 0) recurrent_backward_part<T>().run(work);
  }
  void move_running(const RunningColumns<T>& w) const override {
    for (int64_t step = w.steps.first; step < w.steps.last; ++step) {
      const double alive = static_cast<double>(w.steps.alive[step]), unbiased = alive / (alive - 1);
      const T *const batch_mean = w.batch_mean + step * w.width, *const batch_var = w.batch_var + step * w.width;
      bool finite = true;
      for (int64_t i = 0; i < w.width; ++i)
        finite = finite && std::isfinite(batch_mean[i]) && std::isfinite(static_cast<double>(batch_var[i]) * unbiased);
      if (!finite) continue;
      T *const mean = w.mean + std::min(step, w.rows - 1) * w.width, *const var = w.var + std::min(step, w.rows - 1) * w.width;
      const auto moved = [&](T old, double value) { return static_cast<T>((1 - w.momentum) * static_cast<double>(old) + w.momentum * value); };
      for (int64_t i = 0; i < w.width; ++i) {
        mean[i] = moved(mean[i], static_cast<double>(batch_mean[i]));
        var[i] = moved(var[i], static_cast<double>(batch_var[i]) * unbiased);
      }
    }
  }
};

const CpuRecurrent<float> recurrent_f32;
const CpuRecurrent<double> recurrent_f64;

}  // namespace

template <>
const RecurrentKernels<float>& CpuBackend::recurrent<float>() {
  return recurrent_f32;
}
template <>
const RecurrentKernels<double>& CpuBackend::recurrent<double>() {
  return recurrent_f64;
}

}  // namespace lamina::kernels
