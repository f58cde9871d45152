#pragma once
// Optimiser updates: each parameter, gradient and moment is read once and written once.

#include <array>
#include <cstdint>

namespace lamina::kernels {

/// What changes from step to step; lives in the device's memory (host memory on the CPU), so that a step needs no host and can be captured.
struct StepState {
  int64_t t = 0;  // steps done, this one included
  double lr = 0;
  double grad_scale = 1;  // clipping by norm: multiplies every gradient
  int32_t finite = 1;     // 0: a loss or gradient was not finite; updates leave everything as it is
  int32_t reserved = 0;
};

struct SgdSpec {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // the momentum buffer starts as the gradient (PyTorch)
};

struct AdamSpec {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  // AdamW
};

/// A gradient [out, in] that is not formed: g[o, c] = sum over r of dy[r][o] x[r][c], with 1 to max_rows rows; fused multiply-adds in the order of r,
/// starting from 0, which is what GemmKernels::gemm computes for such a product.
template <class T>
struct RankUpdate {
  static constexpr int max_rows = 16;
  int64_t out = 0, in = 0;
  int rows = 0;
  std::array<const T*, max_rows> dy{}, x{};
};

template <class T>
struct OptimizerKernels {
  virtual ~OptimizerKernels() = default;

  /// velocity is null without momentum.
  virtual void sgd(const StepState* state, const SgdSpec& spec, int64_t n, T* p, const T* g, T* velocity) const = 0;
  virtual void sgd(const StepState* state, const SgdSpec& spec, const RankUpdate<T>& g, T* p, T* velocity) const = 0;
  /// p -= lr m_hat / (sqrt(v_hat) + eps), Kingma & Ba 2015 algorithm 1, eps outside the root; bias corrections in double.
  virtual void adam(const StepState* state, const AdamSpec& spec, int64_t n, T* p, const T* g, T* m, T* v) const = 0;
  virtual void adam(const StepState* state, const AdamSpec& spec, const RankUpdate<T>& g, T* p, T* m, T* v) const = 0;
};

}  // namespace lamina::kernels
