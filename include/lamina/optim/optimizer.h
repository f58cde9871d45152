#pragma once
// Optimisers. step() reads each parameter's gradient; a parameter without one (undefined grad) is left alone, with its moments and its decay.

#include <string>
#include <utility>
#include <vector>

#include <lamina/core/tensor.h>
#include <lamina/nn/module.h>

namespace lamina::optim {

/// Tensors that share hyper-parameters.
struct Group {
  std::vector<nn::Parameter*> parameters;
  double lr_factor = 1.0;                // times the optimiser's lr
  double weight_decay = -1.0;            // negative: the optimiser's
};

/// Splits off gains and biases (parameters of rank <= 1) into a group without decay.
std::vector<Group> no_decay_on_vectors(const std::vector<nn::Parameter*>& parameters);

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the gradients, scaled by the clip factor of the last clip call. Returns false, and changes nothing, when a gradient was not finite
  /// (checked only if `check_finite`).
  virtual bool step() = 0;
  void zero_grad();

  double lr() const { return lr_; }
  void set_lr(double lr);
  bool check_finite = false;

  /// Moments and step count, for checkpoints: "t" (i64 scalar) and "<kind>.<index of parameter>" tensors.
  virtual nn::StateDict state() const = 0;
  /// Validates everything first. Throws InputError.
  virtual void load_state(const nn::StateDict& state) = 0;

  const std::vector<Group>& groups() const { return groups_; }

 protected:
  Optimizer(std::vector<Group> groups, double lr);
  std::vector<Group> groups_;
  double lr_;
};

struct SGDOptions {
  double lr = 1e-2;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;             // coupled (L2): added to the gradient
  bool nesterov = false;                 // needs momentum > 0 and dampening = 0
};

/// Stochastic gradient descent, PyTorch's form: buf = momentum buf + (1 - dampening) g (first step: buf = g); p -= lr buf.
class SGD : public Optimizer {
 public:
  SGD(const std::vector<nn::Parameter*>& parameters, SGDOptions options = {});
  SGD(std::vector<Group> groups, SGDOptions options = {});
  bool step() override;
  nn::StateDict state() const override;
  void load_state(const nn::StateDict& state) override;

 private:
  SGDOptions options_;
  int64_t t_ = 0;
  std::vector<Tensor> velocity_;         // by parameter; undefined until its first gradient
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;                     // outside the root; > 0
  double weight_decay = 0.0;             // Adam: coupled (L2); AdamW: decoupled
};

/// Adam (Kingma & Ba 2015, algorithm 1). The step count is per parameter (steps in which it had a gradient), as in PyTorch.
class Adam : public Optimizer {
 public:
  Adam(const std::vector<nn::Parameter*>& parameters, AdamOptions options = {});
  Adam(std::vector<Group> groups, AdamOptions options = {});
  bool step() override;
  nn::StateDict state() const override;
  void load_state(const nn::StateDict& state) override;

 protected:
  Adam(std::vector<Group> groups, AdamOptions options, bool decoupled);

 private:
  AdamOptions options_;
  bool decoupled_;
  std::vector<int64_t> t_;
  std::vector<Tensor> m_, v_;
};

/// Adam with decoupled weight decay (Loshchilov & Hutter 2019): p *= 1 - lr decay, before the update. PyTorch's default decay is 0.01.
class AdamW : public Adam {
 public:
  AdamW(const std::vector<nn::Parameter*>& parameters, AdamOptions options = {.weight_decay = 0.01});
  AdamW(std::vector<Group> groups, AdamOptions options = {.weight_decay = 0.01});
};

/// Scales all gradients so that their joint Euclidean norm is at most max_norm: factor min(1, max_norm / (norm + 1e-6)), PyTorch's form.
/// Returns the norm before. Throws Error for max_norm <= 0.
double clip_grad_norm(const std::vector<nn::Parameter*>& parameters, double max_norm);
/// Clamps every gradient element to [-limit, limit]. Throws Error for limit <= 0.
void clip_grad_value(const std::vector<nn::Parameter*>& parameters, double limit);

}  // namespace lamina::optim
