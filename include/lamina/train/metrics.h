#pragma once
// What a training run measures.

#include <cstdint>
#include <functional>
#include <limits>

#include <lamina/data/loader.h>
#include <lamina/nn/module.h>

namespace lamina::train {

/// A classifier as training and evaluation see it: a module, and how to get logits [N, K] from it. Made from any module with
/// `Tensor operator()(const Tensor&)`, which must outlive it: Classifier(model).
struct Classifier {
  nn::Module* module;
  std::function<Tensor(const Tensor& x)> forward;

  template <class Model>
  Classifier(Model& model)
      : module(&model), forward([&model](const Tensor& x) { return model(x); }) {}  // NOLINT: a model is used where one is asked for
};

/// Mean over samples of values that come as batch means: sum of value * count over sum of count. (The mean of batch means is another number where the
/// last batch is smaller.)
struct WeightedMean {
  double sum = 0;
  int64_t count = 0;

  void add(double mean, int64_t samples) {
    sum += mean * static_cast<double>(samples);
    count += samples;
  }
  /// NaN when nothing was added.
  double value() const { return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count); }
};

/// The lowest value so far, and for how long it has been that. NaN is never best, and counts as no improvement.
struct Best {
  double value = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0;    // where it was reached
  int64_t waited = 0;  // updates since without an improvement

  /// Returns whether `candidate` is the new best: the first number, or lower than the best.
  bool update(double candidate, int64_t at_step);
};

struct Evaluation {
  double nll = 0;     // mean negative log likelihood, nats per example
  double error = 0;   // fraction of examples whose largest logit is not the label's; NaN where a logit is NaN
  int64_t count = 0;  // examples, all of them
};

/// Adds up an Evaluation over batches: logits [..., K] and labels i64 [...], of which those that cross_entropy ignores do not count.
class ClassScores {
 public:
  void add(const Tensor& logits, const Tensor& labels);
  Evaluation value() const;

 private:
  double nll_ = 0;
  int64_t wrong_ = 0, count_ = 0;
  bool nan_ = false;
};

/// Runs the model over one epoch of `batches` in evaluation mode, without graph; restores the mode.
Evaluation evaluate(const Classifier& model, data::Loader& batches, Device device = Device::cpu());

}  // namespace lamina::train
