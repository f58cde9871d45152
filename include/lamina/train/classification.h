#pragma once
// Classifying the examples of a data set, the usual task:
//   train::Classification task(model, batches);
//   task.add_split("test", data::mnist(dir, data::Split::test));

#include <memory>
#include <string>
#include <vector>

#include <lamina/data/loader.h>
#include <lamina/train/metrics.h>
#include <lamina/train/task.h>

namespace lamina::train {

struct ClassificationOptions {
  int64_t eval_batch_size = 1000;
  Device device = Device::cpu();  // where the model is
};

/// Scores: "nll" (nats per example) and "error" (see Evaluation), which judges.
class Classification : public Task {
 public:
  /// Everything given must outlive the task. Throws Error for an eval_batch_size < 1.
  Classification(Classifier model, data::Loader& batches, ClassificationOptions options = {});

  /// A data set to evaluate on, pixels scaled as in training.
  void add_split(const std::string& name, const data::Dataset& dataset);

  nn::Module& model() override { return *model_.module; }
  std::string items() const override { return "samples"; }
  int64_t batches() const override;
  void seek(int64_t epoch, int64_t batch) override;
  Loss loss() override;
  bool capturable() const override { return true; }
  std::vector<Tensor> inputs() override;
  Loss loss_of(const std::vector<Tensor>& inputs) override;
  void next() override;
  std::vector<std::string> splits() const override;
  std::vector<std::string> scores() const override { return {"nll", "error"}; }
  std::string judged_by() const override { return "error"; }
  Scores evaluate(size_t split) override;
  Metadata describe() const override;

 private:
  struct Split {
    std::string name;
    std::unique_ptr<data::Loader> batches;
  };

  Classifier model_;
  data::Loader& batches_;
  ClassificationOptions options_;
  std::vector<Split> splits_;
  std::unique_ptr<data::Loader::Iterator> at_;  // the batch at hand
};

/// Batches of an epoch that are trained on. A last batch of a single example is left out when there are others, whatever the model: batch norm has no
/// variance of one value, and a rule that asks for the norm would show each norm other data. (Shuffling leaves out another example each epoch;
/// evaluation leaves out none.)
int64_t trained_batches(const data::Loader& batches);

}  // namespace lamina::train
