#pragma once
// The training loop: forward, loss, backward, step; and around it evaluation, records, checkpoints and the ways to stop.
//
//   data::Loader batches(data::mnist(dir, data::Split::train), {.batch_size = 128, .shuffle_seed = 1});
//   nn::Sequential model = nn::MLP({.sizes = {784, 1000, 1000, 10}, .norm = "layer"});
//   model.init(1);
//   optim::Adam adam(model.parameters(), {.lr = 1e-3});
//   train::Classification task(model, batches);
//   task.add_split("test", data::mnist(dir, data::Split::test));
//   train::Trainer trainer(task, adam, {.epochs = 5});
//   trainer.fit();

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lamina/optim/optimizer.h>
#include <lamina/optim/schedule.h>
#include <lamina/train/checkpoint.h>
#include <lamina/train/classification.h>
#include <lamina/train/metrics.h>
#include <lamina/train/progress.h>
#include <lamina/train/run_log.h>
#include <lamina/train/task.h>

namespace lamina::train {

struct TrainerOptions {
  int64_t epochs = 1;                 // in all, those before a resume included
  int64_t steps = 0;                  // also end after so many steps in all, if inside an epoch with an evaluation there; 0: go by epochs alone
  int64_t eval_every = 0;             // also evaluate every so many steps; 0: at the end of each epoch only
  int64_t checkpoint_every = 0;       // also save every so many steps; 0: at the end of each epoch only
  int64_t patience = 0;               // stop after so many epochs without a better judgement on the first split; 0: never
  double clip_norm = 0;               // joint gradient norm; 0: no clipping
  optim::Schedule schedule = {};      // factor on the optimiser's lr, by step
  bool check_gradients = false;       // also stop at the step where a gradient is not finite (costs a pass over them)
  int64_t read_every = 50;            // on a GPU the loss is looked at every so many steps, and before evaluations and checkpoints; else each step
  bool cuda_graph = false;            // on a GPU, run steps of one shape as a graph: the same bits with less work for the host
  std::filesystem::path folder = {};  // last.safetensors and best.safetensors go here; empty: nowhere
  Metadata metadata = {};             // goes into both, e.g. what it takes to build the model
  RunLog* log = nullptr;              // rows of metrics go here
  Progress* progress = nullptr;       // what people see
  /// Runs before each evaluation, e.g. to recompute batch-norm statistics over the data.
  std::function<void()> before_evaluation = {};
};

/// How a split does: its last evaluation, and the lowest so far of the score that the task is judged by.
struct SplitRecord {
  std::string name;
  Scores last;
  Best best;
};

/// Where a run is; all of it is in each checkpoint.
struct TrainState {
  int64_t step = 0;                                              // optimiser steps done
  int64_t epoch = 0;                                             // epochs done
  int64_t batch = 0;                                             // batches done of the epoch after those
  WeightedMean loss;                                             // over those batches: the model was another one at each
  double train_loss = std::numeric_limits<double>::quiet_NaN();  // the same over the last whole epoch
  int64_t samples = 0;                                           // items trained on
  double train_seconds = 0;                                      // in steps alone
  double wall_seconds = 0;                                       // with evaluation and saving, all sessions
  std::vector<SplitRecord> splits;
};

enum class Outcome { finished, stopped_early, interrupted };

class StepGraph;

class Trainer {
 public:
  /// Everything given must outlive the trainer. Throws Error for options out of range.
  Trainer(Task& task, optim::Optimizer& optimizer, TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Continues from a checkpoint that a trainer with the same task (its data and splits too) and optimiser wrote: from there on everything is bitwise
  /// as if it had not stopped. Throws InputError, and changes nothing, when they differ. Returns a warning where that promise is off (another thread
  /// count), else "".
  std::string resume(const std::filesystem::path& checkpoint);

  /// Trains until the epochs or steps are done, patience ends, or a signal asks to stop (see stop.h), and saves. Throws Error when the loss is not
  /// finite, naming step, loss and the first layer whose output was not; the checkpoints on disk are from before. On a GPU this may be read_every
  /// steps later: the steps after the one named have changed nothing.
  Outcome fit();

  const TrainState& state() const { return state_; }
  /// Steps of the last fit() that ran as a CUDA graph.
  int64_t graph_steps() const { return graph_steps_; }

 private:
  void train_epoch();
  void train_step();
  bool plain_step();
  bool graph_step();
  void look(bool passed = true);
  [[noreturn]] void stop_at(int64_t step, const optim::Optimizer::Progress& progress, bool passed);
  void evaluate_splits(bool epoch_done);
  void save();
  void show_step();
  void show_epoch();
  std::string speed(double items_per_second) const;
  bool out_of_patience() const;
  bool done() const;

  Task& task_;
  optim::Optimizer& optimizer_;
  TrainerOptions options_;
  double base_lr_;
  TrainState state_;
  /// A step that nobody has looked at yet: what it trained on, and what the task brought to it.
  struct Unread {
    int64_t items;
    nn::StateDict carried;
  };
  std::vector<Unread> unread_;
  std::unique_ptr<StepGraph> graph_;  // with cuda_graph, while it trains
  int64_t graph_steps_ = 0;
  int64_t steps_before_ = 0;  // steps of the run before the optimiser's count begins
  int64_t session_first_step_ = 0, session_first_sample_ = 0;
  std::chrono::steady_clock::time_point session_start_{};
  double wall_before_ = 0;
};

/// Runs the batch at hand through the model again and says where the numbers stop being finite: "layer 1 (LayerNorm([1000])), op layer_norm", or what
/// else is known. The model's buffers are left as they were.
std::string first_non_finite(Task& task);

}  // namespace lamina::train
