#pragma once
// Predicting the next symbol of a text, by truncated back-propagation through time: a state runs through each stream, gradients through one batch.

#include <string>
#include <utility>
#include <vector>

#include <lamina/data/text.h>
#include <lamina/train/sequence_model.h>
#include <lamina/train/task.h>

namespace lamina::train {

/// Items are symbols. Scores: "nll" (nats per symbol), which judges, "bpc" (bits per symbol, nll / ln 2) and "perplexity" (exp nll).
/// The state starts as zeros with each epoch, is carried from batch to batch without its history, and is in the checkpoints.
class LanguageTask : public Task {
 public:
  /// Everything given must outlive the task. Throws Error when the model's vocabulary is not `vocabulary`'s, or it reads in both directions.
  LanguageTask(SequenceModel& model, const data::Vocabulary& vocabulary, data::TextBatches batches, Device device = Device::cpu());

  /// A text to evaluate on: every symbol but the first is a target. It is cut into as many streams as training has, or fewer where they would be
  /// shorter than a batch's steps. Throws InputError for fewer than two symbols.
  void add_split(const std::string& name, std::vector<int32_t> text);

  nn::Module& model() override { return model_; }
  std::string items() const override;
  int64_t batches() const override { return batches_.num_batches(); }
  void seek(int64_t epoch, int64_t batch) override;
  Loss loss() override;
  /// With noise on the state no step is like another.
  bool capturable() const override { return model_.options().state_noise == 0; }
  std::vector<Tensor> inputs() override;
  Loss loss_of(const std::vector<Tensor>& inputs) override;
  void took(const Loss& loss) override;
  void next() override;
  std::vector<std::string> splits() const override;
  std::vector<std::string> scores() const override { return {"nll", "bpc", "perplexity"}; }
  std::string judged_by() const override { return "nll"; }
  Scores evaluate(size_t split) override;
  std::string summary(const Scores& scores) const override;
  Metadata describe() const override;
  /// "h" and "c" [layers, N, H]; nothing before the first batch.
  nn::StateDict state() const override;
  void load_state(const nn::StateDict& state) override;

 private:
  SequenceModel& model_;
  const data::Vocabulary& vocabulary_;
  data::TextBatches batches_;
  Device device_;
  std::vector<std::pair<std::string, std::vector<int32_t>>> splits_;
  int64_t epoch_ = 0, index_ = 0;
  nn::RecurrentState before_, after_;  // of the batch at hand
};

/// The scores of a text, read as `streams` streams in batches of `steps`.
Scores evaluate_text(SequenceModel& model, const std::vector<int32_t>& text, int64_t streams, int64_t steps, Device device = Device::cpu());

}  // namespace lamina::train
