#include <lamina/train/trainer.h>

#include <algorithm>
#include <cmath>

#include <lamina/io/safetensors.h>
#include <lamina/train/stop.h>
#include "core/format.h"
#include "train/step_graph.h"
#include "train/train_state.h"

namespace lamina::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Where a graph will not write.
nn::StateDict copy_of(nn::StateDict state) {
  for (auto& [name, tensor] : state) tensor = tensor.clone();
  return state;
}

void check(const TrainerOptions& options) {
  const auto at_least = [](const char* name, auto value, auto least) {
    if (!(value >= least)) fail("trainer", "{}: expected at least {}, got {}", name, least, value);
  };
  at_least("epochs", options.epochs, 0);
  at_least("steps", options.steps, 0);
  at_least("eval_every", options.eval_every, 0);
  at_least("checkpoint_every", options.checkpoint_every, 0);
  at_least("patience", options.patience, 0);
  at_least("clip_norm", options.clip_norm, 0.0);
  at_least("read_every", options.read_every, 1);
}

}  // namespace

Trainer::~Trainer() = default;

Trainer::Trainer(Task& task, optim::Optimizer& optimizer, TrainerOptions options)
    : task_(task), optimizer_(optimizer), options_(std::move(options)), base_lr_(optimizer.lr()) {
  check(options_);
  if (options_.check_gradients) optimizer_.check_finite = true;
  for (const std::string& name : task.splits()) {
    state_.splits.push_back({name, {}, {}});
    for (const std::string& score : task.scores()) state_.splits.back().last.values.emplace_back(score, std::nan(""));
  }
}

std::string Trainer::resume(const std::filesystem::path& checkpoint) {
  // What the checkpoint says about this run is checked before the model is touched.
  const io::Safetensors content = io::read_safetensors(checkpoint);
  const TrainState state = read_state(content.metadata, task_, state_, checkpoint);
  const nn::StateDict before = task_.state();
  try {
    task_.load_state(checkpoint_state(content));
  } catch (const InputError& error) {
    fail_input("trainer", "{}: {}", checkpoint.string(), error.what());
  }
  Metadata metadata;
  try {
    metadata = load_checkpoint(checkpoint, task_.model(), optimizer_);
  } catch (...) {
    task_.load_state(before);
    throw;
  }
  state_ = state;
  return machine_warning(metadata, checkpoint, device_kind(task_.model()));
}

Outcome Trainer::fit() {
  session_start_ = std::chrono::steady_clock::now();
  session_first_step_ = state_.step;
  session_first_sample_ = state_.samples;
  wall_before_ = state_.wall_seconds;
  task_.model().train();
  unread_.clear();
  steps_before_ = state_.step - optimizer_.progress().steps;
  optimizer_.restart(state_.loss.sum);
  graph_ = options_.cuda_graph ? std::make_unique<StepGraph>(task_, optimizer_, options_.clip_norm) : nullptr;
  graph_steps_ = 0;
  while (!done() && !out_of_patience()) {
    train_epoch();
    if (stop_signal() && !done()) return Outcome::interrupted;
  }
  graph_.reset();
  return done() ? Outcome::finished : Outcome::stopped_early;
}

bool Trainer::done() const { return state_.epoch >= options_.epochs || (options_.steps > 0 && state_.step >= options_.steps); }

bool Trainer::out_of_patience() const { return options_.patience > 0 && !state_.splits.empty() && state_.splits[0].best.waited >= options_.patience; }

// The rest of the epoch in progress; returns early, with everything saved, when the steps are done or a signal arrives.
void Trainer::train_epoch() {
  const int64_t count = task_.batches();
  const auto due = [this](int64_t every) { return every > 0 && state_.step % every == 0; };
  task_.seek(state_.epoch, state_.batch);
  auto start = std::chrono::steady_clock::now();
  while (state_.batch < count) {
    train_step();
    if (options_.progress) show_step();
    const bool stop = stop_signal() != 0, enough = done();
    if (state_.batch == count) break;
    if (!due(options_.eval_every) && !due(options_.checkpoint_every) && !stop && !enough) continue;
    look();
    state_.train_seconds += seconds_since(start);
    if (due(options_.eval_every) || enough) evaluate_splits(false);
    if (due(options_.checkpoint_every) || stop || enough) save();
    if (enough && options_.progress) show_epoch();
    if (stop || enough) return;
    start = std::chrono::steady_clock::now();
  }
  look();
  state_.train_seconds += seconds_since(start);
  state_.train_loss = state_.loss.value();
  state_.loss = {};
  optimizer_.restart();
  state_.batch = 0;
  ++state_.epoch;
  evaluate_splits(true);
  save();
  if (options_.progress) show_epoch();
}

void Trainer::train_step() {
  if (options_.schedule.kind != optim::Schedule::Kind::constant || options_.schedule.warmup > 0)
    optimizer_.set_lr(base_lr_ * options_.schedule.factor(state_.step));
  const bool waits = graph_ && task_.batch_capturable() ? graph_step() : plain_step();
  ++state_.step;
  ++state_.batch;
  const int64_t items = unread_.back().items;
  if (waits) look(false);
  task_.next();
  state_.samples += items;
  if (static_cast<int64_t>(unread_.size()) >= options_.read_every) look();
}

// Returns whether the device is one that nobody needs to wait for.
bool Trainer::plain_step() {
  optimizer_.zero_grad();
  const Task::Loss loss = task_.loss();
  const bool on_cpu = loss.value.device().is_cpu();
  unread_.push_back({loss.items, on_cpu ? nn::StateDict() : graph_ ? copy_of(task_.state()) : task_.state()});
  loss.value.backward();
  optimizer_.queue_step({loss.value, loss.items, options_.clip_norm});
  return on_cpu;
}

bool Trainer::graph_step() {
  nn::StateDict carried = copy_of(task_.state());
  graph_->step();
  graph_steps_ = graph_->repeated();
  unread_.push_back({graph_->items(), std::move(carried)});
  return false;
}

// Waits for the steps so far and takes their losses into account; stops at one that was not finite. `passed`: the task is past the batch of the last.
void Trainer::look(bool passed) {
  const optim::Optimizer::Progress progress = optimizer_.progress();
  if (!progress.finite) stop_at(steps_before_ + progress.steps, progress, passed);
  for (const Unread& step : unread_) state_.loss.count += step.items;
  state_.loss.sum = progress.loss_sum;
  unread_.clear();
}

// The state becomes what it was before the step that follows `step`: none of those since has changed a parameter.
void Trainer::stop_at(int64_t step, const optim::Optimizer::Progress& progress, bool passed) {
  const int64_t back = state_.step - step;
  const size_t bad = unread_.size() - static_cast<size_t>(back);
  state_.step = step;
  state_.batch -= back;
  state_.loss.sum = progress.loss_sum;
  for (size_t i = 0; i < bad; ++i) state_.loss.count += unread_[i].items;
  for (size_t i = bad; passed && i < unread_.size(); ++i) state_.samples -= unread_[i].items;
  if (passed) {
    task_.load_state(unread_[bad].carried);
    task_.seek(state_.epoch, state_.batch);
  }
  const double lr = base_lr_ * options_.schedule.factor(step);
  const std::string what = progress.at_loss ? fmt::format("the loss is {}", std::isnan(progress.loss) ? std::abs(progress.loss) : progress.loss)
                                            : fmt::format("the loss is {:.4g}, but a gradient is not finite", progress.loss);
  const std::string where = first_non_finite(task_);
  unread_.clear();
  fail("train", "step {} (epoch {}): {}; first not finite: {}; lower the learning rate (now {:g}) or clip the gradients", step + 1, state_.epoch + 1,
       what, where, lr);
}

void Trainer::evaluate_splits(bool epoch_done) {
  if (options_.before_evaluation) options_.before_evaluation();
  std::vector<MetricRow> rows;
  const double epoch = static_cast<double>(state_.epoch) + static_cast<double>(state_.batch) / static_cast<double>(task_.batches());
  const auto row = [&](const std::string& split, const std::string& metric, double value) {
    rows.push_back({state_.step, epoch, wall_before_ + seconds_since(session_start_), split, metric, value});
  };
  row("train", task_.loss_name(), epoch_done ? state_.train_loss : state_.loss.value());
  for (size_t i = 0; i < state_.splits.size(); ++i) {
    SplitRecord& split = state_.splits[i];
    split.last = task_.evaluate(i);
    const int64_t waited = split.best.waited;
    const bool best = split.best.update(split.last[task_.judged_by()], state_.step);
    if (!best && !epoch_done) split.best.waited = waited;  // patience counts epochs
    if (best && i == 0 && !options_.folder.empty()) save_weights(options_.folder / "best.safetensors", task_.model(), options_.metadata);
    for (const auto& [name, value] : split.last.values) row(split.name, name, value);
  }
  if (options_.log) options_.log->append(rows);
}

void Trainer::save() {
  state_.wall_seconds = wall_before_ + seconds_since(session_start_);
  if (options_.folder.empty()) return;
  if (options_.log) options_.log->sync();  // the checkpoint counts on the rows before it
  try {
    require_finite(task_.model());
  } catch (const Error& error) {
    fail("train", "step {} (epoch {}): {}; lower the learning rate (now {:g}) or clip the gradients", state_.step, state_.epoch, error.what(),
         optimizer_.lr());
  }
  Metadata metadata = write_state(state_, task_);
  metadata.insert(options_.metadata.begin(), options_.metadata.end());
  save_checkpoint(options_.folder / "last.safetensors", task_.model(), optimizer_, metadata, task_.state());
}

// "12.4k samples/s  eta 4m10s"; the time left goes by this session's pace, evaluation and saving included.
std::string Trainer::speed(double items_per_second) const {
  std::string text = fmt::format("{} {}/s", format_count(items_per_second), task_.items());
  double left = static_cast<double>(options_.epochs) * static_cast<double>(task_.batches()) - static_cast<double>(state_.step);
  if (options_.steps > 0) left = std::min(left, static_cast<double>(options_.steps - state_.step));
  const double pace = static_cast<double>(state_.step - session_first_step_) / seconds_since(session_start_);
  return left > 0 ? text + "  eta " + format_duration(left / pace) : text;
}

void Trainer::show_step() {
  const double done = static_cast<double>(state_.batch) / static_cast<double>(task_.batches());
  options_.progress->show(done, [this] {
    const double pace = static_cast<double>(state_.samples - session_first_sample_) / seconds_since(session_start_);
    const std::string loss = state_.loss.count == 0 ? "" : fmt::format("train {} {:.4g}  ", task_.loss_name(), state_.loss.value());
    return fmt::format("epoch {}/{}  {}{}", state_.epoch + 1, options_.epochs, loss, speed(pace));
  });
}

void Trainer::show_epoch() {
  const bool whole = state_.batch == 0;  // else the steps ended inside an epoch
  std::string text =
      fmt::format("epoch {}/{}{}  train {} {:.4g}", state_.epoch + !whole, options_.epochs, whole ? "" : fmt::format(", step {}", state_.step),
                  task_.loss_name(), whole ? state_.train_loss : state_.loss.value());
  for (const SplitRecord& split : state_.splits) text += fmt::format("  {} {}", split.name, task_.summary(split.last));
  options_.progress->line(text + "  " + speed(static_cast<double>(state_.samples) / state_.train_seconds));
}

}  // namespace lamina::train
