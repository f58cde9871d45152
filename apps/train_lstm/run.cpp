#include "train_lstm/run.h"

#include <memory>

#include <fmt/format.h>

#include <lamina/core/error.h>
#include <lamina/optim/optimizer.h>
#include <lamina/optim/schedule.h>
#include <lamina/train/trainer.h>

#include "common/run_folder.h"

namespace lamina::train_lstm {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& options, nn::Module& model) {
  if (options.optimizer == "sgd")
    return std::make_unique<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = options.lr, .momentum = options.momentum});
  return std::make_unique<optim::Adam>(model.parameters(), optim::AdamOptions{.lr = options.lr});
}

struct Length {
  int64_t epochs, steps;  // steps 0: go by epochs
};

Length length_of(const Options& options, const Data& data) {
  if (options.steps > 0) return {options.steps / data.batches + (options.steps % data.batches > 0), options.steps};
  return {options.epochs > 0 ? options.epochs : default_epochs(options.task), 0};
}

train::Config results_of(const train::Task& task, const train::TrainState& state, bool stopped_early) {
  const train::SplitRecord& judge = state.splits.at(0);
  train::Config values{{"steps", state.step},
                       {"epochs", static_cast<double>(state.step) / static_cast<double>(task.batches())},
                       {"waited", stopped_early ? judge.best.waited : int64_t{0}},
                       {"train_" + task.loss_name(), state.batch == 0 ? state.train_loss : state.loss.value()},
                       {"best_" + judge.name + "_" + task.judged_by(), judge.best.value},
                       {"best_step", judge.best.step}};
  for (const train::SplitRecord& split : state.splits)
    for (const auto& [name, value] : split.last.values) values.emplace_back(split.name + "_" + name, value);
  values.emplace_back("train_seconds", state.train_seconds);
  values.emplace_back(task.items() + "_per_second", static_cast<double>(state.samples) / state.train_seconds);
  return values;
}

Recipe with_norm(Recipe recipe, const std::string& norm) {
  recipe.norm = norm;
  return recipe;
}

train::TrainerOptions trainer_options(const Options& options, const Data& data, const Recipe& recipe) {
  train::TrainerOptions training;
  training.epochs = length_of(options, data).epochs;
  training.steps = length_of(options, data).steps;
  training.eval_every = options.eval_every;
  training.checkpoint_every = options.checkpoint_every;
  training.patience = options.patience;
  training.clip_norm = options.clip;
  training.schedule = optim::Schedule::parse(options.schedule);
  training.cuda_graph = options.machine.cuda_graph;
  training.metadata = to_metadata(recipe);
  return training;
}

// Model, optimiser and task of a run.
struct Parts {
  train::SequenceModel model;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<train::Task> task;

  Parts(const Options& options, const Data& data, const Recipe& recipe) : model(model_options(recipe)) {
    model.init(static_cast<uint64_t>(options.seed));
    model.to(options.device);
    optimizer = make_optimizer(options, model);
    task = data.make_task(model);
  }
};

}  // namespace

fs::path folder_of(const Options& options, const std::string& norm) {
  return options.norms.empty() ? fs::path(options.out) : fs::path(options.out) / norm;
}

std::optional<Result> finished_result(const Options& options, const Data& data, const std::string& norm) {
  const fs::path folder = folder_of(options, norm);
  const std::optional<train::PastRun> run = train::find_run(folder, describe(options, norm));
  if (!run) return std::nullopt;
  if (!options.resume) throw InputError(fmt::format("{}: holds a run already; --resume continues it, or choose another --out", folder.string()));
  if (const fs::path checkpoint = folder / "last.safetensors"; fs::exists(checkpoint)) {  // throws when it belongs to another run, or to other data
    Parts parts(options, data, with_norm(data.recipe, norm));
    train::Trainer(*parts.task, *parts.optimizer).resume(checkpoint);
  }
  const Length length = length_of(options, data);
  const double steps =
      static_cast<double>(length.steps > 0 ? length.steps : length.epochs) * static_cast<double>(length.steps > 0 ? 1 : data.batches);
  const bool out_of_patience = options.patience > 0 && cli::number(run->results, "waited") >= static_cast<double>(options.patience);
  if (run->status == "finished" && (cli::number(run->results, "steps") >= steps || out_of_patience)) return Result{norm, run->results};
  cli::check_checkpoint(folder, run->status);
  return std::nullopt;
}

std::optional<Result> run(const Options& options, const Data& data, const std::string& norm, train::Progress& progress) {
  const fs::path folder = folder_of(options, norm);
  const Recipe recipe = with_norm(data.recipe, norm);
  Parts parts(options, data, recipe);
  train::TrainerOptions training = trainer_options(options, data, recipe);
  training.folder = folder;
  training.progress = &progress;

  train::RunLog log(folder, describe(options, norm));
  training.log = &log;
  train::Trainer trainer(*parts.task, *parts.optimizer, training);
  cli::continue_run(trainer, folder, progress);
  log.start(trainer.state().step);
  std::optional<Result> result;
  cli::fit(trainer, log, progress, [&](train::Outcome outcome) {
    result = Result{norm, results_of(*parts.task, trainer.state(), outcome == train::Outcome::stopped_early)};
    return result->values;
  });
  return result;
}

}  // namespace lamina::train_lstm
