#pragma once
// Learning from whole sequences: a class or numbers for each, or classes of its last steps.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <lamina/data/sequences.h>
#include <lamina/train/sequence_model.h>
#include <lamina/train/task.h>

namespace lamina::train {

/// Where batches come from: a loader over a set, or a problem that is drawn anew. `get` must give the same for the same (epoch, batch).
struct SequenceSource {
  int64_t batches = 0;  // of an epoch
  std::function<data::SequenceBatch(int64_t epoch, int64_t batch)> get;
  Metadata describe = {};  // what the batches are made of
};

/// Batches of a set. The source keeps the set.
SequenceSource source_of(data::Sequences sequences, const data::SequenceLoaderOptions& options);

/// Items are sequences. Scores: for classes "nll" (nats per class told) and "error", which judges; for numbers "mse".
class SequenceTask : public Task {
 public:
  /// The model must outlive the task. Throws Error when its outputs do not fit the targets.
  SequenceTask(SequenceModel& model, SequenceSource training, Device device = Device::cpu());

  /// Epoch 0 of the source is evaluated.
  void add_split(const std::string& name, SequenceSource source);

  nn::Module& model() override { return model_; }
  std::string items() const override { return "sequences"; }
  std::string loss_name() const override { return classes_ ? "nll" : "mse"; }
  int64_t batches() const override { return training_.batches; }
  void seek(int64_t epoch, int64_t batch) override;
  Loss loss() override;
  /// With noise on the state no step is like another.
  bool capturable() const override { return model_.options().state_noise == 0; }
  /// The lengths of sequences that differ are no tensor.
  bool batch_capturable() const override { return batch_.lengths.empty(); }
  std::vector<Tensor> inputs() override;
  Loss loss_of(const std::vector<Tensor>& inputs) override;
  void next() override;
  std::vector<std::string> splits() const override;
  std::vector<std::string> scores() const override;
  std::string judged_by() const override { return classes_ ? "error" : "mse"; }
  Scores evaluate(size_t split) override;
  Metadata describe() const override;

 private:
  SequenceModel& model_;
  SequenceSource training_;
  Device device_;
  bool classes_;
  std::vector<std::pair<std::string, SequenceSource>> splits_;
  int64_t epoch_ = 0, index_ = 0;
  data::SequenceBatch batch_;  // at hand
};

/// What the model says to a batch, in the shape of its targets: logits [N, outputs], or of the last R steps [N, R, outputs]; numbers [N, outputs].
/// Throws Error for classes of several steps where lengths differ.
Tensor outputs_of(SequenceModel& model, const data::SequenceBatch& batch, Device device = Device::cpu());

/// The scores of all batches of a source.
Scores evaluate_sequences(SequenceModel& model, const SequenceSource& source, Device device = Device::cpu());

}  // namespace lamina::train
