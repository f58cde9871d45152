#pragma once
// Optimiser updates: each parameter, gradient and moment is read once and written once; on CUDA one launch for all parameters.

#include <array>
#include <cstdint>
#include <span>

namespace lamina::kernels {

/// What changes from step to step; lives in the device's memory (host memory on the CPU), so that a step needs no host and can be captured.
struct StepState {
  int64_t t = 0;  // steps done, the one at hand included
  double lr = 0;
  double grad_scale = 1;  // clipping by norm: multiplies every gradient
  double loss = 0;        // of the last step; where finite is 0, of the one that was left out
  double loss_sum = 0;    // of loss times items of the batch, over the steps done
  int32_t finite = 1;     // 0: a loss or gradient was not finite; updates leave everything as it is, and so is all of this from then on
  int32_t at_loss = 0;    // where finite is 0: whether it was the loss
};

struct SgdSpec {
  double momentum = 0, dampening = 0;
  bool nesterov = false;
};

struct AdamSpec {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
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

/// A parameter, what it is updated from, and what its own differs from the others'.
template <class T>
struct OptimizerItem {
  int64_t n = 0;
  T* p = nullptr;
  const T* g = nullptr;
  const RankUpdate<T>* product = nullptr;                  // not null, on the CPU alone: the gradient, instead of g
  T *first = nullptr, *second = nullptr;                   // SGD: the velocity (null without momentum). Adam: m and v
  double lr_factor = 1, grad_scale = 1, weight_decay = 0;  // the first two times the state's
  int64_t missed = 0;                                      // its own t is so much less than the state's
  bool fresh = false;                                      // SGD: the velocity starts as the gradient (PyTorch)
};

template <class T>
struct OptimizerKernels {
  virtual ~OptimizerKernels() = default;

  virtual void sgd(const StepState* state, const SgdSpec& spec, std::span<const OptimizerItem<T>> items) const = 0;
  /// p -= lr m_hat / (sqrt(v_hat) + eps), Kingma & Ba 2015 algorithm 1, eps outside the root; bias corrections in double.
  virtual void adam(const StepState* state, const AdamSpec& spec, std::span<const OptimizerItem<T>> items) const = 0;
};

/// What comes between backward and update, where nobody waits for the device. The CPU has none of it: optim/optimizer.cpp looks at numbers itself.
struct StepKernels {
  template <class T>
  struct Gradient {
    int64_t n = 0;
    const T* g = nullptr;
  };
  struct Inspection {
    std::span<const Gradient<float>> f32 = {};
    std::span<const Gradient<double>> f64 = {};
    double max_norm = 0;  // above 0: grad_scale = min(1, max_norm / (norm + 1e-6)), and the norm must be finite
    bool check = false;   // whether each element must be
    const float* loss_f32 = nullptr;
    const double* loss_f64 = nullptr;  // both null: there is none to look at
    double items = 0;                  // that the loss is the mean of
  };

  virtual ~StepKernels() = default;
  /// Where all is finite: one more step in t, its grad_scale, loss and loss_sum. Else finite = 0.
  virtual void inspect(StepState* state, const Inspection& inspection) const = 0;
};

}  // namespace lamina::kernels
