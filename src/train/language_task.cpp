#include <lamina/train/language_task.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <lamina/ops/loss.h>
#include <lamina/train/metrics.h>
#include "core/format.h"
#include "train/train_state.h"

namespace lamina::train {

LanguageTask::LanguageTask(SequenceModel& model, const data::Vocabulary& vocabulary, data::TextBatches batches, Device device)
    : model_(model), vocabulary_(vocabulary), batches_(std::move(batches)), device_(device) {
  const SequenceModelOptions& options = model.options();
  if (options.vocabulary != vocabulary.size() || options.outputs != vocabulary.size())
    fail("language", "model: expected a vocabulary and outputs of {}, got {} and {}", vocabulary.size(), options.vocabulary, options.outputs);
  if (options.layers.bidirectional) fail("language", "model: expected one direction, got two (the other one reads what is to be predicted)");
}

void LanguageTask::add_split(const std::string& name, std::vector<int32_t> text) {
  if (text.size() < 2) fail_input("language", "{}: expected at least 2 symbols, got {}", name, text.size());
  splits_.emplace_back(name, std::move(text));
}

std::string LanguageTask::items() const { return vocabulary_.unit() == data::TextUnit::byte ? "bytes" : "characters"; }

void LanguageTask::seek(int64_t epoch, int64_t batch) {
  if (batch == 0) before_ = {};
  after_ = {};
  epoch_ = epoch;
  index_ = batch;
}

Task::Loss LanguageTask::loss() {
  std::vector<Tensor> there = inputs();
  for (Tensor& input : there) input = input.to(device_);
  return loss_of(there);
}

std::vector<Tensor> LanguageTask::inputs() {
  const data::TextBatch batch = batches_.batch(epoch_, index_);
  std::vector<Tensor> inputs{batch.x, batch.y};
  for (const Tensor& state : {before_.h, before_.c})
    if (state.defined()) inputs.push_back(state);
  return inputs;
}

Task::Loss LanguageTask::loss_of(const std::vector<Tensor>& inputs) {
  after_ = {inputs.size() > 2 ? inputs[2] : Tensor(), inputs.size() > 3 ? inputs[3] : Tensor()};
  const Tensor logits = model_.steps(inputs[0], after_);
  return {cross_entropy(logits, inputs[1]), inputs[1].numel(), {after_.h, after_.c}};
}

void LanguageTask::took(const Loss& loss) { after_ = {loss.carried[0], loss.carried[1]}; }

void LanguageTask::next() {
  before_ = after_.detach();
  after_ = {};
  ++index_;
}

std::vector<std::string> LanguageTask::splits() const {
  std::vector<std::string> names;
  for (const auto& [name, text] : splits_) names.push_back(name);
  return names;
}

Scores LanguageTask::evaluate(size_t split) {
  return evaluate_text(model_, splits_[split].second, batches_.options().batch_size, batches_.options().steps, device_);
}

std::string LanguageTask::summary(const Scores& scores) const {
  return fmt::format("nll {:.4g} ({:.3f} bits per {}, perplexity {:.4g})", scores["nll"], scores["bpc"], to_string(vocabulary_.unit()),
                     scores["perplexity"]);
}

Metadata LanguageTask::describe() const {
  const data::TextBatchesOptions& options = batches_.options();
  Metadata described{{"data.symbols", to_text(batches_.text().size())},
                     {"data.symbols_crc32", fmt::format("{:08x}", data::checksum(batches_.text()))},
                     {"data.vocabulary", vocabulary_.str()},
                     {"data.batch_size", to_text(options.batch_size)},
                     {"data.steps", to_text(options.steps)},
                     {"data.seed", to_text(options.seed)}};
  for (const auto& [name, text] : splits_) described[split_key(name)] = fmt::format("{:08x}", data::checksum(text));
  return described;
}

nn::StateDict LanguageTask::state() const {
  nn::StateDict state;
  if (before_.h.defined()) state.emplace_back("h", before_.h);
  if (before_.c.defined()) state.emplace_back("c", before_.c);
  return state;
}

void LanguageTask::load_state(const nn::StateDict& state) {
  const nn::RecurrentLayerOptions& layers = model_.options().layers;
  const Shape shape{layers.layers, batches_.options().batch_size, layers.hidden};
  nn::RecurrentState loaded;
  for (const auto& [name, tensor] : state) {
    if (name != "h" && name != "c") fail_input("language", "state: expected h and c, got '{}'", name);
    if (tensor.shape() != shape) fail_input("language", "state {}: expected {}, got {} (another architecture)", name, shape, tensor.shape());
    (name == "h" ? loaded.h : loaded.c) = tensor.to(device_);
  }
  if (loaded.h.defined() && loaded.c.defined() != (model_.options().cell == RecurrentCell::lstm))
    fail_input("language", "state: {} (another cell)", loaded.c.defined() ? "c is of an LSTM" : "c is missing");
  before_ = loaded;
}

Scores evaluate_text(SequenceModel& model, const std::vector<int32_t>& text, int64_t streams, int64_t steps, Device device) {
  const EvaluationMode mode(model);
  const int64_t targets = static_cast<int64_t>(text.size()) - 1;
  streams = std::min(streams, std::max<int64_t>(targets / steps, 1));
  const int64_t length = (targets + streams - 1) / streams;  // of a stream; the last ones may be shorter
  ClassScores scores;
  nn::RecurrentState state;
  for (int64_t begin = 0; begin < length; begin += steps) {
    const int64_t count = std::min(steps, length - begin);
    Tensor x = Tensor::zeros({count, streams}, DType::i64), y = Tensor::full({count, streams}, CrossEntropyOptions{}.ignore_index, DType::i64);
    auto *in = x.mutable_data<int64_t>(), *out = y.mutable_data<int64_t>();
    for (int64_t t = 0; t < count; ++t)
      for (int64_t n = 0; n < streams; ++n) {
        const int64_t at = n * length + begin + t;
        if (at >= targets) continue;
        in[t * streams + n] = text[static_cast<size_t>(at)];
        out[t * streams + n] = text[static_cast<size_t>(at) + 1];
      }
    scores.add(model.steps(x.to(device), state), y.to(device));
  }
  const Evaluation result = scores.value();
  return {{{"nll", result.nll}, {"bpc", result.nll / std::numbers::ln2}, {"perplexity", std::exp(result.nll)}}, result.count};
}

}  // namespace lamina::train
