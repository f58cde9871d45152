#include <lamina/train/trainer.h>

#include <algorithm>
#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/io/safetensors.h>
#include <lamina/ops/loss.h>
#include <lamina/train/stop.h>
#include "core/format.h"
#include "train/train_state.h"

namespace lamina::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check(const TrainerOptions& options) {
  const auto at_least = [](const char* name, auto value, auto least) {
    if (!(value >= least)) fail("trainer", "{}: expected at least {}, got {}", name, least, value);
  };
  at_least("epochs", options.epochs, 0);
  at_least("eval_every", options.eval_every, 0);
  at_least("checkpoint_every", options.checkpoint_every, 0);
  at_least("patience", options.patience, 0);
  at_least("clip_norm", options.clip_norm, 0.0);
  at_least("eval_batch_size", options.eval_batch_size, 1);
}

}  // namespace

int64_t trained_batches(const data::Loader& batches) {
  const int64_t count = batches.num_batches(), size = batches.options().batch_size;
  const bool single_last = !batches.options().drop_last && batches.dataset().size() % size == 1;
  return single_last && size > 1 && count > 1 ? count - 1 : count;
}

Trainer::Trainer(Classifier model, optim::Optimizer& optimizer, data::Loader& batches, TrainerOptions options)
    : model_(std::move(model)),
      optimizer_(optimizer),
      batches_(batches),
      options_(std::move(options)),
      parameters_(model_.module->parameters()),
      base_lr_(optimizer.lr()) {
  check(options_);
  if (options_.check_gradients) optimizer_.check_finite = true;
}

void Trainer::add_split(const std::string& name, const data::Dataset& dataset) {
  data::LoaderOptions options = batches_.options();
  options.batch_size = std::min(options_.eval_batch_size, dataset.size());
  options.shuffle = options.drop_last = false;
  split_batches_.push_back(std::make_unique<data::Loader>(dataset, options));
  state_.splits.push_back({name, {std::nan(""), std::nan(""), 0}, {}});
}

std::string Trainer::resume(const std::filesystem::path& checkpoint) {
  // What the checkpoint says about this run is checked before the model is touched.
  const TrainState state = read_state(io::read_safetensors(checkpoint).metadata, batches_, state_, checkpoint);
  const Metadata metadata = load_checkpoint(checkpoint, *model_.module, optimizer_);
  state_ = state;
  return thread_warning(metadata, checkpoint);
}

Outcome Trainer::fit() {
  session_start_ = std::chrono::steady_clock::now();
  session_first_sample_ = state_.samples;
  wall_before_ = state_.wall_seconds;
  model_.module->train();
  while (state_.epoch < options_.epochs && !out_of_patience()) {
    train_epoch();
    if (stop_signal() && state_.epoch < options_.epochs) return Outcome::interrupted;
  }
  return state_.epoch < options_.epochs ? Outcome::stopped_early : Outcome::finished;
}

bool Trainer::out_of_patience() const {
  return options_.patience > 0 && !state_.splits.empty() && state_.splits[0].lowest_error.waited >= options_.patience;
}

// The rest of the epoch in progress; returns early, with everything saved, when a signal arrives.
void Trainer::train_epoch() {
  const int64_t count = trained_batches(batches_);
  const auto due = [this](int64_t every) { return every > 0 && state_.step % every == 0; };
  batches_.set_epoch(state_.epoch);
  batches_.seek(state_.batch);
  auto start = std::chrono::steady_clock::now();
  for (auto batch = batches_.begin(); state_.batch < count; ++batch) {
    const int64_t samples = batch->labels.size(0);
    state_.loss.add(train_step(*batch), samples);
    state_.samples += samples;
    ++state_.step;
    ++state_.batch;
    if (options_.progress) show_step();
    const bool last = state_.batch == count, stop = stop_signal() != 0;
    if (last) break;
    if (!due(options_.eval_every) && !due(options_.checkpoint_every) && !stop) continue;
    state_.train_seconds += seconds_since(start);
    if (due(options_.eval_every)) evaluate_splits(false);
    if (due(options_.checkpoint_every) || stop) save();
    if (stop) return;
    start = std::chrono::steady_clock::now();
  }
  state_.train_seconds += seconds_since(start);
  state_.train_nll = state_.loss.value();
  state_.loss = {};
  state_.batch = 0;
  ++state_.epoch;
  evaluate_splits(true);
  save();
  if (options_.progress) show_epoch();
}

double Trainer::train_step(const data::Batch& batch) {
  if (options_.schedule.kind != optim::Schedule::Kind::constant || options_.schedule.warmup > 0)
    optimizer_.set_lr(base_lr_ * options_.schedule.factor(state_.step));
  optimizer_.zero_grad();
  const Tensor loss = cross_entropy(model_.forward(batch.images.to(options_.device)), batch.labels.to(options_.device));
  const double value = loss.item();
  const auto stop_here = [&](const char* what) {
    fail("train", "step {} (epoch {}): {}; first not finite: {}; lower the learning rate (now {:g}) or clip the gradients", state_.step + 1,
         state_.epoch + 1, what, first_non_finite(model_, batch, options_.device), optimizer_.lr());
  };
  if (!std::isfinite(value)) stop_here(fmt::format("the loss is {}", std::isnan(value) ? std::abs(value) : value).c_str());
  loss.backward();
  if (options_.clip_norm > 0) optim::clip_grad_norm(parameters_, options_.clip_norm);
  if (!optimizer_.step()) stop_here(fmt::format("the loss is {:.4g}, but a gradient is not finite", value).c_str());
  return value;
}

void Trainer::evaluate_splits(bool epoch_done) {
  if (options_.before_evaluation) options_.before_evaluation();
  std::vector<MetricRow> rows;
  const double epoch = static_cast<double>(state_.epoch) + static_cast<double>(state_.batch) / static_cast<double>(trained_batches(batches_));
  const auto row = [&](const std::string& split, const char* metric, double value) {
    rows.push_back({state_.step, epoch, wall_before_ + seconds_since(session_start_), split, metric, value});
  };
  row("train", "nll", epoch_done ? state_.train_nll : state_.loss.value());
  for (size_t i = 0; i < state_.splits.size(); ++i) {
    SplitRecord& split = state_.splits[i];
    split.last = evaluate(model_, *split_batches_[i], options_.device);
    const int64_t waited = split.lowest_error.waited;
    const bool best = split.lowest_error.update(split.last.error, state_.step);
    if (!best && !epoch_done) split.lowest_error.waited = waited;  // patience counts epochs
    if (best && i == 0 && !options_.folder.empty()) save_weights(options_.folder / "best.safetensors", *model_.module);
    row(split.name, "nll", split.last.nll);
    row(split.name, "error", split.last.error);
  }
  if (options_.log) options_.log->append(rows);
}

void Trainer::save() {
  state_.wall_seconds = wall_before_ + seconds_since(session_start_);
  if (options_.folder.empty()) return;
  if (options_.log) options_.log->sync();  // the checkpoint counts on the rows before it
  try {
    require_finite(*model_.module);
  } catch (const Error& error) {
    fail("train", "step {} (epoch {}): {}; lower the learning rate (now {:g}) or clip the gradients", state_.step, state_.epoch, error.what(),
         optimizer_.lr());
  }
  save_checkpoint(options_.folder / "last.safetensors", *model_.module, optimizer_, write_state(state_, batches_));
}

// "12.4k samples/s  eta 4m10s"; the time left goes by this session's pace, evaluation and saving included.
std::string Trainer::speed(double samples_per_second) const {
  std::string text = fmt::format("{} samples/s", format_count(samples_per_second));
  const auto batches = static_cast<double>(trained_batches(batches_));
  const double left = static_cast<double>(options_.epochs - state_.epoch) - static_cast<double>(state_.batch) / batches;
  const double pace = static_cast<double>(state_.samples - session_first_sample_) / seconds_since(session_start_);
  const double per_epoch = static_cast<double>(std::min(batches_.dataset().size(), trained_batches(batches_) * batches_.options().batch_size));
  return left > 0 ? text + "  eta " + format_duration(left * per_epoch / pace) : text;
}

void Trainer::show_step() {
  const double done = static_cast<double>(state_.batch) / static_cast<double>(trained_batches(batches_));
  options_.progress->show(done, [this] {
    const double pace = static_cast<double>(state_.samples - session_first_sample_) / seconds_since(session_start_);
    return fmt::format("epoch {}/{}  train nll {:.4g}  {}", state_.epoch + 1, options_.epochs, state_.loss.value(), speed(pace));
  });
}

void Trainer::show_epoch() {
  std::string text = fmt::format("epoch {}/{}  train nll {:.4g}", state_.epoch, options_.epochs, state_.train_nll);
  for (const SplitRecord& split : state_.splits) text += fmt::format("  {} err {:.2f} %", split.name, split.last.error * 100);
  options_.progress->line(text + "  " + speed(static_cast<double>(state_.samples) / state_.train_seconds));
}

}  // namespace lamina::train
