#pragma once
// The training loop for classifiers: forward, loss, backward, step; and around it evaluation, records, checkpoints and the ways to stop.
//
//   data::Loader batches(data::mnist(dir, data::Split::train), {.batch_size = 128, .shuffle_seed = 1});
//   nn::Sequential model = nn::MLP({.sizes = {784, 1000, 1000, 10}, .norm = "layer"});
//   model.init(1);
//   optim::Adam adam(model.parameters(), {.lr = 1e-3});
//   train::Trainer trainer(model, adam, batches, {.epochs = 5});
//   trainer.add_split("test", data::mnist(dir, data::Split::test));
//   trainer.fit();

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lamina/data/loader.h>
#include <lamina/optim/optimizer.h>
#include <lamina/optim/schedule.h>
#include <lamina/train/checkpoint.h>
#include <lamina/train/metrics.h>
#include <lamina/train/progress.h>
#include <lamina/train/run_log.h>

namespace lamina::train {

struct TrainerOptions {
  int64_t epochs = 1;             // in all, those before a resume included
  int64_t eval_every = 0;         // also evaluate every so many steps; 0: at the end of each epoch only
  int64_t checkpoint_every = 0;   // also save every so many steps; 0: at the end of each epoch only
  int64_t patience = 0;           // stop after so many epochs without a lower error on the first split; 0: never
  double clip_norm = 0;           // joint gradient norm; 0: no clipping
  optim::Schedule schedule = {};  // factor on the optimiser's lr, by step
  bool check_gradients = false;   // also stop at the step where a gradient is not finite (costs a pass over them)
  int64_t eval_batch_size = 1000;
  Device device = Device::cpu();      // where the model is
  std::filesystem::path folder = {};  // last.safetensors and best.safetensors go here; empty: nowhere
  RunLog* log = nullptr;              // rows of metrics go here
  Progress* progress = nullptr;       // what people see
  /// Runs before each evaluation, e.g. to recompute batch-norm statistics over the data.
  std::function<void()> before_evaluation = {};
};

/// How a split does: its last evaluation and the lowest error so far.
struct SplitRecord {
  std::string name;
  Evaluation last;
  Best lowest_error;
};

/// Where a run is; all of it is in each checkpoint.
struct TrainState {
  int64_t step = 0;                                             // optimiser steps done
  int64_t epoch = 0;                                            // epochs done
  int64_t batch = 0;                                            // batches done of the epoch after those
  WeightedMean loss;                                            // over those batches: the model was another one at each
  double train_nll = std::numeric_limits<double>::quiet_NaN();  // the same over the last whole epoch
  int64_t samples = 0;                                          // examples trained on
  double train_seconds = 0;                                     // in steps alone
  double wall_seconds = 0;                                      // with evaluation and saving, all sessions
  std::vector<SplitRecord> splits;
};

enum class Outcome { finished, stopped_early, interrupted };

class Trainer {
 public:
  /// Everything given must outlive the trainer. Throws Error for options out of range.
  Trainer(Classifier model, optim::Optimizer& optimizer, data::Loader& batches, TrainerOptions options = {});

  /// A data set to evaluate on, pixels scaled as in training. The first split decides what is best (lowest error) and when patience ends.
  void add_split(const std::string& name, const data::Dataset& dataset);

  /// Continues from a checkpoint that a trainer with the same model, optimiser, batches and splits wrote: from there on everything is bitwise as if
  /// it had not stopped. Throws InputError, and changes nothing, when they differ. Returns a warning where that promise is off (another thread
  /// count), else "".
  std::string resume(const std::filesystem::path& checkpoint);

  /// Trains until the epochs are done, patience ends, or a signal asks to stop (see stop.h), and saves. Throws Error when the loss is not finite,
  /// naming step, loss and the first layer whose output was not; the checkpoints on disk are from before.
  Outcome fit();

  const TrainState& state() const { return state_; }

 private:
  void train_epoch();
  double train_step(const data::Batch& batch);
  void evaluate_splits(bool epoch_done);
  void save();
  void show_step();
  void show_epoch();
  std::string speed(double samples_per_second) const;
  bool out_of_patience() const;

  Classifier model_;
  optim::Optimizer& optimizer_;
  data::Loader& batches_;
  TrainerOptions options_;
  std::vector<nn::Parameter*> parameters_;
  double base_lr_;
  std::vector<std::unique_ptr<data::Loader>> split_batches_;
  TrainState state_;
  int64_t session_first_sample_ = 0;
  std::chrono::steady_clock::time_point session_start_{};
  double wall_before_ = 0;
};

/// Batches of an epoch that are trained on. A last batch of a single example is left out when there are others, whatever the model: batch norm has no
/// variance of one value, and a rule that asks for the norm would show each norm other data. (Shuffling leaves out another example each epoch;
/// evaluation leaves out none.)
int64_t trained_batches(const data::Loader& batches);

/// Runs the batch through the model and says where the numbers stop being finite: "layer 1 (LayerNorm([1000])), op layer_norm", or what else is
/// known. The model's buffers are left as they were.
std::string first_non_finite(const Classifier& model, const data::Batch& batch, Device device = Device::cpu());

}  // namespace lamina::train
