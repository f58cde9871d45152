#pragma once
// Optimisers. step() reads each parameter's gradient; a frozen parameter, or one without gradient (undefined grad), is left alone: no step, no
// momentum, no decay. Parameters are f32 or f64; moments follow a parameter that is moved or cast. Options out of range throw Error, as do an empty
// list, an absent parameter, and a parameter (or two tied ones) listed twice. A step counts as a change of the weights: a backward through a graph
// made before it is refused. All parameters that have a gradient must be on one device. On a GPU a step is queued, and its calls return at once.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lamina/core/tensor.h>
#include <lamina/nn/module.h>

namespace lamina::optim {

/// Tensors that share hyper-parameters.
struct Group {
  std::vector<nn::Parameter*> parameters;
  double lr_factor = 1.0;      // times the optimiser's lr; >= 0
  double weight_decay = -1.0;  // negative: the optimiser's
};

/// Splits off gains and biases (parameters of rank <= 1) into a group without decay.
std::vector<Group> no_decay_on_vectors(const std::vector<nn::Parameter*>& parameters);

class StepMemory;

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the gradients. Returns false, and changes nothing, when a gradient was not finite (checked only if `check_finite`, and then it
  /// waits for the device; see queue_step for loops that do not).
  bool step();
  void zero_grad();

  double lr() const { return lr_; }  // before the groups' factors
  void set_lr(double lr);
  bool check_finite = false;

  // -- steps that nobody waits for

  struct QueuedStep {
    Tensor loss = {};      // a scalar that is looked at and added up; undefined: none
    int64_t items = 0;     // that it is the mean of
    double clip_norm = 0;  // clips as clip_grad_norm() does, but for grad(), which does not show it; 0: no clipping
  };
  /// Clipping and update without waiting for the device. When the loss is not finite, or with clip_norm the joint norm, or with check_finite a
  /// gradient, the step changes nothing, and neither does any after it until restart().
  void queue_step(const QueuedStep& what);

  struct Progress {
    int64_t steps;    // updates done since the optimiser was made or its state loaded
    bool finite;      // false: the step after those was left out, and so were all that followed
    bool at_loss;     // where not finite: whether it was the loss
    double loss;      // of the last step, or of the one that was left out
    double loss_sum;  // of loss times items, over the steps since restart()
  };
  /// Of the queued steps. Waits for the device.
  Progress progress();
  /// Goes on after a step that was left out, and sets what losses are added to.
  void restart(double loss_sum = 0);

  // -- queued steps that are captured, and run again by a CUDA graph

  /// Brings the learning rate to the device, where the steps read it. Before a capture, and before each run.
  void send_lr();
  /// Counts a run again of the step that was queued last.
  void repeat_step();

  /// For checkpoints; PyTorch's names, with the position of the parameter. SGD: "momentum_buffer.<i>" (with momentum). Adam: "step.<i>" (i64 scalar,
  /// steps done), "exp_avg.<i>", "exp_avg_sq.<i>". Only of parameters that have had a step. The tensors are detached handles on the live values.
  virtual nn::StateDict state() const = 0;
  /// The inverse; parameters without entries start anew. Checks everything (names, shapes, dtypes) first. Throws InputError.
  virtual void load_state(const nn::StateDict& state) = 0;

  const std::vector<Group>& groups() const { return groups_; }

 protected:
  /// A parameter with what its group says of it.
  struct Entry {
    nn::Parameter* parameter;
    double lr_factor, weight_decay;
  };
  /// `name` stands in errors.
  Optimizer(const char* name, std::vector<Group> groups, double lr, double weight_decay);
  /// Queues the updates of all parameters that have a gradient. The state is a kernels::StepState in the device's memory.
  virtual void update(Device device, const void* state) = 0;
  /// Where the parameters with gradients are; nothing when there are none. Throws Error where they are in several places.
  std::optional<Device> device() const;
  /// Steps that parameter i has had; in update(), the one at hand included.
  int64_t steps_of(size_t i) const { return steps_ - missed_[i]; }
  /// For all parameters.
  void set_steps(const std::vector<int64_t>& steps);

  const char* name_;
  std::vector<Group> groups_;
  std::vector<Entry> entries_;  // of all groups, in order
  double lr_;
  std::vector<int64_t> missed_;  // steps in which a parameter had no gradient

 private:
  void inspect(Device device, const QueuedStep& what);

  int64_t steps_ = 0;
  std::vector<size_t> left_alone_;  // parameters without gradient in the last step
  double loss_start_ = 0;
  std::unique_ptr<StepMemory> memory_;
};

struct SGDOptions {
  double lr = 1e-2;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;  // coupled (L2): added to the gradient
  bool nesterov = false;      // needs momentum > 0 and dampening = 0
};

/// Stochastic gradient descent, PyTorch's form: buf = momentum buf + (1 - dampening) g (first step: buf = g); p -= lr buf.
class SGD : public Optimizer {
 public:
  SGD(const std::vector<nn::Parameter*>& parameters, SGDOptions options = {});
  SGD(std::vector<Group> groups, SGDOptions options = {});
  nn::StateDict state() const override;
  void load_state(const nn::StateDict& state) override;

 private:
  void update(Device device, const void* state) override;

  SGDOptions options_;
  std::vector<Tensor> velocity_;  // by parameter; undefined until its first gradient
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;  // both in [0, 1)
  double beta2 = 0.999;
  double eps = 1e-8;                        // outside the root; > 0
  std::optional<double> weight_decay = {};  // default: Adam 0 (coupled, L2: added to the gradient), AdamW 0.01 (decoupled)
};

/// Adam (Kingma & Ba 2015, algorithm 1). The step count is per parameter (steps in which it had a gradient), as in PyTorch.
class Adam : public Optimizer {
 public:
  Adam(const std::vector<nn::Parameter*>& parameters, AdamOptions options = {});
  Adam(std::vector<Group> groups, AdamOptions options = {});
  nn::StateDict state() const override;
  void load_state(const nn::StateDict& state) override;

 protected:
  Adam(const char* name, std::vector<Group> groups, AdamOptions options, bool decoupled);

 private:
  void update(Device device, const void* state) override;

  AdamOptions options_;
  bool decoupled_;
  std::vector<Tensor> m_, v_;  // by parameter; undefined until its first gradient
};

/// Adam with decoupled weight decay (Loshchilov & Hutter 2019): p *= 1 - lr decay, before the update. The default decay is PyTorch's, 0.01.
class AdamW : public Adam {
 public:
  AdamW(const std::vector<nn::Parameter*>& parameters, AdamOptions options = {});
  AdamW(std::vector<Group> groups, AdamOptions options = {});
};

/// Scales all gradients (grad() shows it) so that their joint Euclidean norm is at most max_norm: factor min(1, max_norm / (norm + 1e-6)),
/// PyTorch's form. The norm is accumulated in double; frozen parameters do not count. Returns the norm before; where that is not finite, the
/// gradients stay as they are, for check_finite to see. Call it once per step, after the last backward. Waits for the device. Throws Error for
/// max_norm <= 0.
double clip_grad_norm(const std::vector<nn::Parameter*>& parameters, double max_norm);
/// Clamps every gradient element to [-limit, limit]; NaN stays. Throws Error for limit <= 0.
void clip_grad_value(const std::vector<nn::Parameter*>& parameters, double limit);

}  // namespace lamina::optim
