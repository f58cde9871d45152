#include "mnist_batchsize/run.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <lamina/autograd/graph.h>
#include <lamina/nn/mlp.h>
#include <lamina/train/checkpoint.h>

#include "common/run_folder.h"

namespace lamina::mnist_batchsize {
namespace {

namespace fs = std::filesystem;

// Mean and standard deviation of all pixels, over 255; sums of integers, so exact.
std::pair<double, double> pixel_statistics(const Tensor& images) {
  const uint8_t* pixels = images.data<uint8_t>();
  int64_t sum = 0, squares = 0;
  for (int64_t i = 0; i < images.numel(); ++i) {
    sum += pixels[i];
    squares += int64_t{pixels[i]} * pixels[i];
  }
  const auto count = static_cast<double>(images.numel());
  const double mean = static_cast<double>(sum) / count;
  return {mean / 255, std::sqrt(std::max(static_cast<double>(squares) / count - mean * mean, 0.0)) / 255};
}

nn::Sequential make_model(const Options& options, const Cell& cell, int64_t inputs) {
  nn::MLPOptions mlp;
  mlp.sizes = {inputs};
  mlp.sizes.insert(mlp.sizes.end(), options.hidden.begin(), options.hidden.end());
  mlp.sizes.push_back(classes);
  mlp.norm = cell.norm;
  mlp.norm_output = options.norm_output;
  mlp.norm_after_activation = options.norm_after_relu;
  mlp.init = options.init;
  mlp.batch_norm.momentum = options.bn_momentum;
  mlp.batch_norm.unbiased = unbiased_variance(options, cell.batch_size);
  nn::Sequential model = nn::MLP(mlp);
  model.init(static_cast<uint64_t>(cell.seed));
  return model;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& options, nn::Module& model) {
  if (options.optimizer == "sgd")
    return std::make_unique<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = options.lr, .momentum = options.momentum});
  return std::make_unique<optim::Adam>(model.parameters(),
                                       optim::AdamOptions{.lr = options.lr, .beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps});
}

// Population statistics (Ioffe & Szegedy 2015, algorithm 2): averages over training batches of the size that training has.
void population_pass(nn::Sequential& model, const data::Loader& training) {
  data::LoaderOptions options = training.options();
  options.shuffle = false;
  data::Loader batches(training.dataset(), options);
  nn::recompute_population_statistics(model, [&] {
    const NoGrad guard;
    const int64_t count = train::trained_batches(batches);
    for (auto batch = batches.begin(); batch != batches.end() && batch.index() < count; ++batch) model(batch->images);
  });
}

// `waited`: epochs without a lower validation error when patience ended the run, else 0.
train::Config as_config(const Result& result, int64_t waited) {
  return {{"epochs", result.epochs},
          {"stopped_early", waited > 0},
          {"waited", waited},
          {"best_test_error", result.best_test_error},
          {"final_test_error", result.final_test_error},
          {"final_train_nll", result.final_train_nll},
          {"seconds_per_epoch", result.seconds_per_epoch},
          {"samples_per_second", result.samples_per_second}};
}

Result result_of(const Cell& cell, const train::TrainState& state) {
  const train::SplitRecord& test = state.splits.at(1);
  return {cell,
          state.epoch,
          test.best.value,
          test.last["error"],
          state.train_loss,
          state.train_seconds / static_cast<double>(state.epoch),
          static_cast<double>(state.samples) / state.train_seconds};
}

}  // namespace

Data load_data(const Options& options) {
  const fs::path dir = options.data.empty() ? data::mnist_dir(options.dataset) : fs::path(options.data);
  const data::Dataset all = data::mnist(dir, data::Split::train_full);  // once: the two parts share its memory
  if (all.size() <= data::validation_size)
    throw InputError(fmt::format("{}: expected more than {} training images, of which the first {} validate, got {}", dir.string(),
                                 data::validation_size, data::validation_size, all.size()));
  Data data{all.slice(data::validation_size, all.size()), all.slice(0, data::validation_size), data::mnist(dir, data::Split::test)};
  if (options.limit > 0) data.train = data.train.limit(options.limit);
  for (const int64_t batch_size : options.batch_sizes)
    if (batch_size > data.train.size())
      throw InputError(fmt::format("--batch-sizes: expected at most {}, the number of training images, got {}", data.train.size(), batch_size));
  if (options.input_range == "standard") {
    const auto [mean, deviation] = pixel_statistics(data.train.images);
    if (deviation == 0) throw InputError(fmt::format("{}: all training pixels are equal, so they cannot be standardised", dir.string()));
    data.scale = 1 / (255 * deviation);
    data.mean = mean / deviation;
  }
  return data;
}

std::optional<Result> finished_result(const Options& options, const Cell& cell) {
  const fs::path folder = fs::path(options.out) / cell.name();
  const std::optional<train::PastRun> run = train::find_run(folder, describe(options, cell));
  if (!run) return std::nullopt;
  if (!options.resume) throw InputError(fmt::format("{}: holds a run already; --resume continues it, or choose another --out", folder.string()));
  const double epochs = cli::number(run->results, "epochs");
  const bool out_of_patience = options.patience > 0 && cli::number(run->results, "waited") >= static_cast<double>(options.patience);
  if (run->status != "finished" || !(epochs >= static_cast<double>(options.epochs) || out_of_patience)) {
    cli::check_checkpoint(folder, run->status);
    return std::nullopt;
  }
  return Result{cell,
                static_cast<int64_t>(epochs),
                cli::number(run->results, "best_test_error"),
                cli::number(run->results, "final_test_error"),
                cli::number(run->results, "final_train_nll"),
                cli::number(run->results, "seconds_per_epoch"),
                cli::number(run->results, "samples_per_second")};
}

std::optional<Result> run_cell(const Options& options, const Data& data, const Cell& cell, train::Progress& progress) {
  const fs::path folder = fs::path(options.out) / cell.name();
  nn::Sequential model = make_model(options, cell, data.train.images.numel() / data.train.size());
  const std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(options, model);
  data::Loader batches(data.train,
                       {.batch_size = cell.batch_size, .shuffle_seed = static_cast<uint64_t>(cell.seed), .scale = data.scale, .mean = data.mean});

  train::TrainerOptions training;
  training.epochs = options.epochs;
  training.eval_every = options.eval_every;
  training.checkpoint_every = options.checkpoint_every;
  training.patience = options.patience;
  training.clip_norm = options.clip_norm;
  training.schedule = optim::Schedule::parse(options.schedule);
  training.folder = folder;
  training.progress = &progress;
  if (nn::NormSpec(cell.norm).couples_batch() && options.bn_eval == "population")
    training.before_evaluation = [&] { population_pass(model, batches); };

  train::RunLog log(folder, describe(options, cell));
  training.log = &log;
  train::Classification task(model, batches);
  task.add_split("validation", data.validation);
  task.add_split("test", data.test);
  train::Trainer trainer(task, *optimizer, training);
  cli::continue_run(trainer, folder, progress);
  log.start(trainer.state().step);
  std::optional<Result> result;
  cli::fit(trainer, log, progress, [&](train::Outcome outcome) {
    result = result_of(cell, trainer.state());
    return as_config(*result, outcome == train::Outcome::stopped_early ? trainer.state().splits.at(0).best.waited : 0);
  });
  return result;
}

}  // namespace lamina::mnist_batchsize
