#include <lamina/train/sequence_task.h>

#include <memory>

#include <lamina/ops/loss.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/train/metrics.h>
#include "core/format.h"
#include "train/train_state.h"

namespace lamina::train {
namespace {

bool are_classes(const data::SequenceBatch& batch) { return batch.targets.dtype() == DType::i64; }

}  // namespace

SequenceSource source_of(data::Sequences sequences, const data::SequenceLoaderOptions& options) {
  const auto loader = std::make_shared<data::SequenceLoader>(std::move(sequences), options);
  return {loader->num_batches(),
          [loader](int64_t epoch, int64_t batch) { return loader->batch(epoch, batch); },
          {{"data.sequences", to_text(loader->sequences().size())},
           {"data.sequences_crc32", fmt::format("{:08x}", data::checksum(loader->sequences()))},
           {"data.batch_size", to_text(options.batch_size)},
           {"data.shuffle", options.shuffle ? "true" : "false"},
           {"data.shuffle_seed", to_text(options.shuffle_seed)},
           {"data.bucket", to_text(options.bucket)},
           {"data.drop_single", options.drop_single ? "true" : "false"}}};
}

SequenceTask::SequenceTask(SequenceModel& model, SequenceSource training, Device device)
    : model_(model), training_(std::move(training)), device_(device), classes_(true) {
  if (training_.batches < 1) fail("sequences", "training: expected at least one batch, got {}", training_.batches);
  const data::SequenceBatch batch = training_.get(0, 0);
  classes_ = are_classes(batch);
  if (!classes_ && batch.targets.size(1) != model.options().outputs)
    fail("sequences", "model: expected {} outputs, one for each target, got {}", batch.targets.size(1), model.options().outputs);
}

void SequenceTask::add_split(const std::string& name, SequenceSource source) { splits_.emplace_back(name, std::move(source)); }

void SequenceTask::seek(int64_t epoch, int64_t batch) {
  epoch_ = epoch;
  index_ = batch;
  batch_ = index_ < batches() ? training_.get(epoch_, index_) : data::SequenceBatch();
}

void SequenceTask::next() { seek(epoch_, index_ + 1); }

Task::Loss SequenceTask::loss() { return loss_of({batch_.x.to(device_), batch_.targets.to(device_)}); }

std::vector<Tensor> SequenceTask::inputs() { return {batch_.x, batch_.targets}; }

Task::Loss SequenceTask::loss_of(const std::vector<Tensor>& inputs) {
  const Tensor y = outputs_of(model_, {.x = inputs[0], .lengths = batch_.lengths, .targets = inputs[1]}, device_);
  return {classes_ ? cross_entropy(y, inputs[1]) : mse_loss(y, inputs[1]), inputs[1].size(0)};
}

std::vector<std::string> SequenceTask::splits() const {
  std::vector<std::string> names;
  for (const auto& [name, source] : splits_) names.push_back(name);
  return names;
}

std::vector<std::string> SequenceTask::scores() const {
  return classes_ ? std::vector<std::string>{"nll", "error"} : std::vector<std::string>{"mse"};
}

Metadata SequenceTask::describe() const {
  Metadata described = training_.describe;
  for (const auto& [name, source] : splits_)
    if (const auto crc = source.describe.find("data.sequences_crc32"); crc != source.describe.end()) described[split_key(name)] = crc->second;
  return described;
}

Scores SequenceTask::evaluate(size_t split) { return evaluate_sequences(model_, splits_[split].second, device_); }

Tensor outputs_of(SequenceModel& model, const data::SequenceBatch& batch, Device device) {
  const Tensor x = batch.x.to(device);
  if (!are_classes(batch) || batch.targets.rank() == 1) return model.last(x, batch.lengths);
  if (!batch.lengths.empty()) fail("sequences", "classes of several steps need sequences of one length");
  return transpose(model.last_steps(x, batch.targets.size(1)), 0, 1);
}

Scores evaluate_sequences(SequenceModel& model, const SequenceSource& source, Device device) {
  const EvaluationMode mode(model);
  ClassScores classes;
  WeightedMean squares;
  int64_t count = 0;
  bool numbers = false;
  for (int64_t i = 0; i < source.batches; ++i) {
    const data::SequenceBatch batch = source.get(0, i);
    const Tensor y = outputs_of(model, batch, device), targets = batch.targets.to(device);
    numbers = !are_classes(batch);
    if (numbers)
      squares.add(mse_loss(y, targets).item(), targets.size(0));
    else
      classes.add(y, targets);
    count += targets.size(0);
  }
  if (numbers) return {{{"mse", squares.value()}}, count};
  const Evaluation result = classes.value();
  return {{{"nll", result.nll}, {"error", result.error}}, count};
}

}  // namespace lamina::train
