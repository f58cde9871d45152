// SGD and Adam updates: one pass, every array read once and written once. A gradient comes from memory or, row by row, from its factors.

#include <lamina/core/parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

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

/// A stretch of a gradient in memory.
template <class T>
struct InMemory {
  const T* g;
  template <class At>
  HWY_INLINE Vec<T> operator()(At at) const {
    return at.load(g);
  }
};

/// Row o of a product dy^T x: the chain of fused multiply-adds that the own product kernel makes, so that the bits are the same.
template <class T, int kRows>
struct ProductRow {
  HWY_INLINE ProductRow(const RankUpdate<T>& product, int64_t o) : x(product.x.data()) {
    for (int r = 0; r < kRows; ++r) dy[r] = set(product.dy[static_cast<size_t>(r)][o]);
  }
  template <class At>
  HWY_INLINE Vec<T> operator()(At at) const {
    Vec<T> g = zero<T>();
    for (int r = 0; r < kRows; ++r) g = hn::MulAdd(dy[r], at.load(x[r]), g);
    return g;
  }
  Vec<T> dy[kRows];
  const T* const* x;
};

template <class T>
struct SgdRule {
  SgdRule(const StepState& state, const SgdSpec& spec, const OptimizerItem<T>& item)
      : p(item.p),
        velocity(item.first),
        decays(item.weight_decay != 0),
        nesterov(spec.nesterov),
        first(item.fresh),
        scale(state.grad_scale * item.grad_scale),
        decay(item.weight_decay),
        lr(state.lr * item.lr_factor),
        momentum(spec.momentum),
        fresh(1 - spec.dampening) {}

  /// The update of n elements from `begin`, whose gradient is `g`.
  template <class Source>
  HWY_INLINE void operator()(const Source& g, int64_t begin, int64_t n) const {
    const Vec<T> scale_v = set_to<T>(scale), decay_v = set_to<T>(decay), step = set_to<T>(lr), momentum_v = set_to<T>(momentum),
                 fresh_v = set_to<T>(fresh);
    T *const ps = p + begin, *const vs = velocity ? velocity + begin : nullptr;
    for_each_vector<T>(n, [&](auto at) HWY_ATTR {
      const Vec<T> p_v = at.load(ps);
      Vec<T> d = hn::Mul(g(at), scale_v);
      if (decays) d = hn::MulAdd(p_v, decay_v, d);
      if (vs) {
        const Vec<T> v = first ? d : hn::MulAdd(momentum_v, at.load(vs), hn::Mul(fresh_v, d));
        at.store(vs, v);
        d = nesterov ? hn::MulAdd(momentum_v, v, d) : v;
      }
      at.store(ps, hn::NegMulAdd(step, d, p_v));
    });
  }

  T *p, *velocity;
  bool decays, nesterov, first;
  double scale, decay, lr, momentum, fresh;
};

template <class T>
struct AdamRule {
  AdamRule(const StepState& state, const AdamSpec& spec, const OptimizerItem<T>& item)
      : p(item.p),
        m(item.first),
        v(item.second),
        coupled(item.weight_decay != 0 && !spec.decoupled),
        scale(state.grad_scale * item.grad_scale),
        decay(item.weight_decay),
        beta1(spec.beta1),
        beta2(spec.beta2),
        eps(spec.eps) {
    const double t = static_cast<double>(state.t - item.missed), lr = state.lr * item.lr_factor;
    keep = spec.decoupled ? 1 - lr * item.weight_decay : 1.0;
    step = lr / (1 - std::pow(beta1, t));
    root_scale = 1 / std::sqrt(1 - std::pow(beta2, t));
  }

  template <class Source>
  HWY_INLINE void operator()(const Source& g, int64_t begin, int64_t n) const {
    const Vec<T> scale_v = set_to<T>(scale), decay_v = set_to<T>(decay), keep_v = set_to<T>(keep), eps_v = set_to<T>(eps);
    const Vec<T> beta1_v = set_to<T>(beta1), fresh1 = set_to<T>(1 - beta1), beta2_v = set_to<T>(beta2), fresh2 = set_to<T>(1 - beta2);
    const Vec<T> step_v = set_to<T>(step), root_v = set_to<T>(root_scale);
    T *const ps = p + begin, *const ms = m + begin, *const vs = v + begin;
    for_each_vector<T>(n, [&](auto at) HWY_ATTR {
      const Vec<T> p_v = at.load(ps);
      Vec<T> d = hn::Mul(g(at), scale_v);
      if (coupled) d = hn::MulAdd(p_v, decay_v, d);
      const Vec<T> m_v = hn::MulAdd(beta1_v, at.load(ms), hn::Mul(fresh1, d));
      const Vec<T> v_v = hn::MulAdd(beta2_v, at.load(vs), hn::Mul(fresh2, hn::Mul(d, d)));
      at.store(ms, m_v);
      at.store(vs, v_v);
      const Vec<T> denominator = hn::MulAdd(hn::Sqrt(v_v), root_v, eps_v);
      at.store(ps, hn::NegMulAdd(step_v, hn::Div(m_v, denominator), hn::Mul(p_v, keep_v)));
    });
  }

  T *p, *m, *v;
  bool coupled;
  double scale, decay, keep, beta1, beta2, eps, step, root_scale;
};

template <class T, class Rule>
void update(const Rule& rule, int64_t n, const T* g) {
  parallel_for(n, parallel_elements, [&](int64_t begin, int64_t end) HWY_ATTR { rule(InMemory<T>{g + begin}, begin, end - begin); });
}

template <int kRows, class T, class Rule>
void update_rows(const Rule& rule, const RankUpdate<T>& product) {
  parallel_for(product.out, std::max<int64_t>(1, parallel_elements / std::max<int64_t>(1, product.in)), [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t o = begin; o < end; ++o) rule(ProductRow<T, kRows>(product, o), o * product.in, product.in);
  });
}

template <class T, class Rule, int... kLess>
void update_rows_up_to(const Rule& rule, const RankUpdate<T>& product, std::integer_sequence<int, kLess...>) {
  ((product.rows == kLess + 1 ? update_rows<kLess + 1>(rule, product) : void()), ...);
}

template <class T, class Rule>
void update(const Rule& rule, const RankUpdate<T>& product) {
  update_rows_up_to(rule, product, std::make_integer_sequence<int, RankUpdate<T>::max_rows>());
}

template <class T, class Rule>
void update(const Rule& rule, const OptimizerItem<T>& item) {
  item.product ? update(rule, *item.product) : update(rule, item.n, item.g);
}

template <class T>
struct CpuOptimizer final : OptimizerKernels<T> {
  void sgd(const StepState* state, const SgdSpec& spec, std::span<const OptimizerItem<T>> items) const override {
    if (state->finite == 0) return;
    for (const OptimizerItem<T>& item : items) update(SgdRule<T>(*state, spec, item), item);
  }
  void adam(const StepState* state, const AdamSpec& spec, std::span<const OptimizerItem<T>> items) const override {
    if (state->finite == 0) return;
    for (const OptimizerItem<T>& item : items) update(AdamRule<T>(*state, spec, item), item);
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
