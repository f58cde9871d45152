#pragma once
// What a Trainer trains: where batches come from, what their loss is, how a split is judged. Classification is one; see
// <lamina/train/language_task.h> and <lamina/train/sequence_task.h> for others.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lamina/autograd/graph.h>
#include <lamina/nn/module.h>
#include <lamina/train/checkpoint.h>

namespace lamina::train {

/// What a pass over a split measured ("nll" 0.31, "error" 0.09), and over how many items.
struct Scores {
  std::vector<std::pair<std::string, double>> values;
  int64_t count = 0;

  /// NaN for a name that is not there.
  double operator[](std::string_view name) const;
};

class Task {
 public:
  /// The loss of a batch: a scalar with its graph, the mean over `items`, which is also what counts as trained on.
  struct Loss {
    Tensor value;
    int64_t items = 0;
    std::vector<Tensor> carried = {};  // what the next batch goes on from
  };

  virtual ~Task() = default;
  virtual nn::Module& model() = 0;
  /// What is counted: "samples", "characters".
  virtual std::string items() const = 0;
  virtual std::string loss_name() const { return "nll"; }

  // -- training: a number of batches, epoch after epoch

  virtual int64_t batches() const = 0;
  /// Goes to a batch of an epoch. The first one begins afresh; another one goes on from what load_state() gave.
  virtual void seek(int64_t epoch, int64_t batch) = 0;
  /// Of the batch at hand; the same when called again.
  virtual Loss loss() = 0;
  /// On to the next batch of the epoch; after the last one, to nowhere until seek().
  virtual void next() = 0;

  // -- training with CUDA graphs, where a step of the same shapes is run again without calling loss(): for tasks whose loss depends on some tensors

  virtual bool capturable() const { return false; }
  /// Whether the batch at hand is one of those: the step of another one runs as without graphs.
  virtual bool batch_capturable() const { return true; }
  /// Of the batch at hand, on any device.
  virtual std::vector<Tensor> inputs() { return {}; }
  /// loss() from inputs that are where the model is.
  virtual Loss loss_of(const std::vector<Tensor>& inputs);
  /// Says that a step has been run again, whose loss_of() once gave this: next() goes on from what it carries now.
  virtual void took(const Loss& loss);

  // -- evaluation

  virtual std::vector<std::string> splits() const = 0;
  /// Names of what evaluate() measures, in its order.
  virtual std::vector<std::string> scores() const = 0;
  /// The score that decides which weights are the best: the lowest on the first split.
  virtual std::string judged_by() const = 0;
  /// Runs the model over all of a split in evaluation mode, without graph; restores the mode.
  virtual Scores evaluate(size_t split) = 0;
  /// For people: "err 2.31 %".
  virtual std::string summary(const Scores& scores) const;

  // -- checkpoints

  /// What the batches are made of; a checkpoint that says otherwise belongs to another run.
  virtual Metadata describe() const = 0;
  /// What one batch hands to the next, e.g. a recurrent state.
  virtual nn::StateDict state() const { return {}; }
  /// The inverse. Throws InputError, and changes nothing, for what state() cannot have given.
  virtual void load_state(const nn::StateDict& state);
};

/// Turns evaluation mode and NoGrad on while it lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(nn::Module& model);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  nn::Module& model_;
  bool was_training_;
  NoGrad no_grad_;
};

}  // namespace lamina::train
