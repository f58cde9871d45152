#include <lamina/train/classification.h>

#include <algorithm>

#include <lamina/ops/loss.h>
#include "core/format.h"
#include "train/train_state.h"

namespace lamina::train {

int64_t trained_batches(const data::Loader& batches) {
  const int64_t count = batches.num_batches(), size = batches.options().batch_size;
  const bool single_last = !batches.options().drop_last && batches.dataset().size() % size == 1;
  return single_last && size > 1 && count > 1 ? count - 1 : count;
}

Classification::Classification(Classifier model, data::Loader& batches, ClassificationOptions options)
    : model_(std::move(model)), batches_(batches), options_(options) {
  if (options.eval_batch_size < 1) fail("classification", "eval_batch_size: expected at least 1, got {}", options.eval_batch_size);
}

void Classification::add_split(const std::string& name, const data::Dataset& dataset) {
  data::LoaderOptions options = batches_.options();
  options.batch_size = std::min(options_.eval_batch_size, dataset.size());
  options.shuffle = options.drop_last = false;
  splits_.push_back({name, std::make_unique<data::Loader>(dataset, options)});
}

int64_t Classification::batches() const { return trained_batches(batches_); }

void Classification::seek(int64_t epoch, int64_t batch) {
  at_.reset();  // first, so that its memory can serve the next one
  batches_.set_epoch(epoch);
  batches_.seek(batch);
  at_ = std::make_unique<data::Loader::Iterator>(batches_.begin());
}

Task::Loss Classification::loss() {
  const data::Batch& batch = **at_;
  return loss_of({batch.images.to(options_.device), batch.labels.to(options_.device)});
}

std::vector<Tensor> Classification::inputs() {
  const data::Batch& batch = **at_;
  return {batch.images, batch.labels};
}

Task::Loss Classification::loss_of(const std::vector<Tensor>& inputs) {
  return {cross_entropy(model_.forward(inputs[0]), inputs[1]), inputs[1].size(0)};
}

void Classification::next() {
  if (at_->index() + 1 < batches())
    ++*at_;
  else
    at_.reset();
}

std::vector<std::string> Classification::splits() const {
  std::vector<std::string> names;
  for (const Split& split : splits_) names.push_back(split.name);
  return names;
}

Scores Classification::evaluate(size_t split) {
  const Evaluation result = train::evaluate(model_, *splits_[split].batches, options_.device);
  return {{{"nll", result.nll}, {"error", result.error}}, result.count};
}

Metadata Classification::describe() const {
  const data::LoaderOptions& options = batches_.options();
  Metadata described{{"data.examples", to_text(batches_.dataset().size())},
                     {"data.examples_crc32", fmt::format("{:08x}", batches_.data_checksum())},
                     {"data.batch_size", to_text(options.batch_size)},
                     {"data.shuffle", options.shuffle ? "true" : "false"},
                     {"data.shuffle_seed", to_text(options.shuffle_seed)},
                     {"data.drop_last", options.drop_last ? "true" : "false"},
                     {"data.scale", to_text(options.scale)},
                     {"data.mean", to_text(options.mean)}};
  for (const Split& split : splits_) described[split_key(split.name)] = fmt::format("{:08x}", split.batches->data_checksum());
  return described;
}

}  // namespace lamina::train
