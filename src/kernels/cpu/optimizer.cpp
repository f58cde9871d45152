// SGD and Adam updates: one pass, every array read once and written once.

#include <lamina/core/parallel.h>

#include <cmath>

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t parallel_elements = 16384;  // less work than this stays on one thread

template <class T>
HWY_INLINE Vec<T> set_to(double value) {
  return set(static_cast<T>(value));
}

template <class T>
struct CpuOptimizer final : OptimizerKernels<T> {
  void sgd(const StepState* state, const SgdSpec& spec, int64_t n, T* p, const T* g, T* velocity) const override {
    if (state->finite == 0) return;
    const bool decays = spec.weight_decay != 0;
    parallel_for(n, parallel_elements, [&](int64_t first, int64_t last) HWY_ATTR {
      const Vec<T> scale = set_to<T>(state->grad_scale), decay = set_to<T>(spec.weight_decay), step = set_to<T>(state->lr);
      const Vec<T> momentum = set_to<T>(spec.momentum), fresh = set_to<T>(1 - spec.dampening);
      T *const ps = p + first, *const vs = velocity ? velocity + first : nullptr;
      const T* const gs = g + first;
      for_each_vector<T>(last - first, [&](auto at) HWY_ATTR {
        const Vec<T> p_v = at.load(ps);
        Vec<T> d = hn::Mul(at.load(gs), scale);
        if (decays) d = hn::MulAdd(p_v, decay, d);
        if (vs) {
          const Vec<T> v = spec.first ? d : hn::MulAdd(momentum, at.load(vs), hn::Mul(fresh, d));
          at.store(vs, v);
          d = spec.nesterov ? hn::MulAdd(momentum, v, d) : v;
        }
        at.store(ps, hn::NegMulAdd(step, d, p_v));
      });
    });
  }

  void adam(const StepState* state, const AdamSpec& spec, int64_t n, T* p, const T* g, T* m, T* v) const override {
    if (state->finite == 0) return;
    const double t = static_cast<double>(state->t);
    const double correction1 = 1 - std::pow(spec.beta1, t), correction2 = 1 - std::pow(spec.beta2, t);
    const bool coupled = spec.weight_decay != 0 && !spec.decoupled;
    parallel_for(n, parallel_elements, [&](int64_t first, int64_t last) HWY_ATTR {
      const Vec<T> scale = set_to<T>(state->grad_scale), decay = set_to<T>(spec.weight_decay);
      const Vec<T> keep = set_to<T>(spec.decoupled ? 1 - state->lr * spec.weight_decay : 1.0);
      const Vec<T> beta1 = set_to<T>(spec.beta1), fresh1 = set_to<T>(1 - spec.beta1), beta2 = set_to<T>(spec.beta2),
                   fresh2 = set_to<T>(1 - spec.beta2);
      const Vec<T> step = set_to<T>(state->lr / correction1), root_scale = set_to<T>(1 / std::sqrt(correction2)), eps = set_to<T>(spec.eps);
      T *const ps = p + first, *const ms = m + first, *const vs = v + first;
      const T* const gs = g + first;
      for_each_vector<T>(last - first, [&](auto at) HWY_ATTR {
        const Vec<T> p_v = at.load(ps);
        Vec<T> d = hn::Mul(at.load(gs), scale);
        if (coupled) d = hn::MulAdd(p_v, decay, d);
        const Vec<T> m_v = hn::MulAdd(beta1, at.load(ms), hn::Mul(fresh1, d));
        const Vec<T> v_v = hn::MulAdd(beta2, at.load(vs), hn::Mul(fresh2, hn::Mul(d, d)));
        at.store(ms, m_v);
        at.store(vs, v_v);
        const Vec<T> denominator = hn::MulAdd(hn::Sqrt(v_v), root_scale, eps);
        at.store(ps, hn::NegMulAdd(step, hn::Div(m_v, denominator), hn::Mul(p_v, keep)));
      });
    });
  }
};

const OptimizerKernels<float>* optimizer_f32() {
  static const CpuOptimizer<float> kernels;
  return &kernels;
}
const OptimizerKernels<double>* optimizer_f64() {
  static const CpuOptimizer<double> kernels;
  return &kernels;
}

}  // namespace
}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {
HWY_EXPORT(optimizer_f32);
HWY_EXPORT(optimizer_f64);
template <>
const OptimizerKernels<float>& CpuBackend::optimizer<float>() {
  return *HWY_DYNAMIC_DISPATCH(optimizer_f32)();
}
template <>
const OptimizerKernels<double>& CpuBackend::optimizer<double>() {
  return *HWY_DYNAMIC_DISPATCH(optimizer_f64)();
}
}  // namespace lamina::kernels
#endif
