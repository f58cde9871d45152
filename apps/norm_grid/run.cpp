#include "norm_grid/run.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <lamina/autograd/graph.h>
#include <lamina/data/cifar.h>
#include <lamina/nn/mlp.h>
#include <lamina/train/checkpoint.h>

#include "common/run_folder.h"

namespace lamina::norm_grid {
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
  mlp.bias_init = options.bias_init;
  mlp.dropout = options.dropout;
  mlp.batch_norm.momentum = options.bn_momentum;
  mlp.batch_norm.unbiased = unbiased_variance(options, cell.batch_size);
  nn::Sequential model = nn::MLP(mlp);
  model.init(static_cast<uint64_t>(cell.seed));
  model.to(options.device);
  return model;
}

// All parameters or, with weight decay, the weights and the others apart. The gains of weight norm are columns of a matrix.
std::vector<optim::Group> groups(const Options& options, nn::Module& model) {
  if (options.weight_decay == 0) return {{model.parameters()}};
  std::vector<optim::Group> result{{{}, 1.0, options.weight_decay}, {{}, 1.0, 0.0}};
  for (const auto& [path, parameter] : model.named_parameters()) {
    const bool weight = parameter->shape().rank() > 1 && !path.ends_with("_g");
    result[weight ? 0 : 1].parameters.push_back(parameter);
  }
  std::erase_if(result, [](const optim::Group& group) { return group.parameters.empty(); });
  return result;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& options, nn::Module& model) {
  if (options.optimizer == "sgd")
    return std::make_unique<optim::SGD>(groups(options, model), optim::SGDOptions{.lr = options.lr, .momentum = options.momentum});
  return std::make_unique<optim::Adam>(groups(options, model),
                                       optim::AdamOptions{.lr = options.lr, .beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps});
}

// Population statistics (Ioffe & Szegedy 2015, algorithm 2): averages over training batches of the size that training has.
void population_pass(nn::Sequential& model, const data::Loader& training, Device device) {
  data::LoaderOptions options = training.options();
  options.shuffle = false;
  data::Loader batches(training.dataset(), options);
  nn::recompute_population_statistics(model, [&] {
    const NoGrad guard;
    const int64_t count = train::trained_batches(batches);
    for (auto batch = batches.begin(); batch != batches.end() && batch.index() < count; ++batch) model(batch->images.to(device));
  });
}

// What a run is judged by in the end. Of the splits, 0 is the validation images, 1 the second.
struct Measure {
  const char* name;
  double (*of)(const train::TrainState&);
};
std::vector<Measure> measures(const Options& options) {
  using State = train::TrainState;
  std::vector<Measure> result;
  if (options.comparison)
    result = {{"best_validation_error", [](const State& s) { return s.splits.at(0).best.value; }},
              {"final_validation_error", [](const State& s) { return s.splits.at(0).last["error"]; }},
              {"final_training_error", [](const State& s) { return s.splits.at(1).last["error"]; }}};
  else
    result = {{"best_test_error", [](const State& s) { return s.splits.at(1).best.value; }},
              {"final_test_error", [](const State& s) { return s.splits.at(1).last["error"]; }}};
  result.push_back({"final_train_nll", [](const State& s) { return s.train_loss; }});
  result.push_back({"seconds_per_epoch", [](const State& s) { return s.train_seconds / static_cast<double>(s.epoch); }});
  result.push_back({"samples_per_second", [](const State& s) { return static_cast<double>(s.samples) / s.train_seconds; }});
  return result;
}

// Model, optimiser, batches and task of a run.
struct Parts {
  nn::Sequential model;
  std::unique_ptr<optim::Optimizer> optimizer;
  data::Loader batches;
  train::Classification task;

  Parts(const Options& options, const Data& data, const Cell& cell)
      : model(make_model(options, cell, data.train.images.numel() / data.train.size())),
        optimizer(make_optimizer(options, model)),
        batches(data.train,
                {.batch_size = cell.batch_size, .shuffle_seed = static_cast<uint64_t>(cell.seed), .scale = data.scale, .mean = data.mean}),
        task(model, batches, {.device = options.device}) {
    task.add_split("validation", data.validation);
    task.add_split(options.comparison ? "training" : "test", data.second);  // the trainer's own rows are called "train"
  }
};

// `waited`: epochs without a lower validation error when patience ended the run, else 0.
train::Config as_config(const Result& result, int64_t waited) {
  train::Config config{{"epochs", result.epochs}, {"stopped_early", waited > 0}, {"waited", waited}};
  for (const auto& [name, value] : result.values) config.emplace_back(name, value);
  return config;
}

data::Dataset read_images(const Options& options, const fs::path& dir, data::Split split) {
  return options.dataset == "cifar10" ? data::cifar10(dir, split) : data::mnist(dir, split);
}

fs::path data_dir(const Options& options) { return options.data.empty() ? data::dataset_dir(options.dataset) : fs::path(options.data); }

}  // namespace

Data load_data(const Options& options) {
  const fs::path dir = data_dir(options);
  const data::Dataset all = read_images(options, dir, data::Split::train_full);  // once: the two parts share its memory
  if (all.size() <= data::validation_size)
    throw InputError(fmt::format("{}: expected more than {} training images, of which the first {} validate, got {}", dir.string(),
                                 data::validation_size, data::validation_size, all.size()));
  Data data{all.slice(data::validation_size, all.size()), all.slice(0, data::validation_size), {}};
  if (options.limit > 0) data.train = data.train.limit(options.limit);
  data.second = options.comparison ? data.train : read_images(options, dir, data::Split::test);
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

double Result::operator[](std::string_view name) const {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == name; });
  return found == values.end() ? std::nan("") : found->second;
}

std::optional<Result> finished_result(const Options& options, const Data& data, const Cell& cell) {
  const fs::path folder = fs::path(options.out) / cell.name();
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !fs::is_directory(folder, ignored))
    throw InputError(fmt::format("{}: expected a folder for the run, found a file; choose another --out", folder.string()));
  const std::optional<train::PastRun> run = train::find_run(folder, describe(options, cell));
  if (!run) return std::nullopt;
  if (!options.resume) throw InputError(fmt::format("{}: holds a run already; --resume continues it, or choose another --out", folder.string()));
  if (const fs::path checkpoint = folder / "last.safetensors"; fs::exists(checkpoint)) {  // throws when it belongs to another run, or to other data
    Parts parts(options, data, cell);
    train::Trainer(parts.task, *parts.optimizer).resume(checkpoint);
  }
  const double epochs = cli::number(run->results, "epochs");
  const bool out_of_patience = options.patience > 0 && cli::number(run->results, "waited") >= static_cast<double>(options.patience);
  if (run->status != "finished" || !(epochs >= static_cast<double>(options.epochs) || out_of_patience)) {
    cli::check_checkpoint(folder, run->status);
    return std::nullopt;
  }
  Result result{cell, static_cast<int64_t>(epochs), {}};
  for (const Measure& measure : measures(options)) result.values.emplace_back(measure.name, cli::number(run->results, measure.name));
  return result;
}

std::optional<Result> run_cell(const Options& options, const Data& data, const Cell& cell, train::Progress& progress) {
  const fs::path folder = fs::path(options.out) / cell.name();
  Parts parts(options, data, cell);

  train::TrainerOptions training;
  training.epochs = options.epochs;
  training.eval_every = options.eval_every;
  training.checkpoint_every = options.checkpoint_every;
  training.patience = options.patience;
  training.clip_norm = options.clip_norm;
  training.schedule = optim::Schedule::parse(options.schedule);
  training.cuda_graph = options.machine.cuda_graph;
  training.folder = folder;
  training.progress = &progress;
  if (nn::NormSpec(cell.norm).couples_batch() && options.bn_eval == "population")
    training.before_evaluation = [&] { population_pass(parts.model, parts.batches, options.device); };

  train::RunLog log(folder, describe(options, cell));
  training.log = &log;
  train::Trainer trainer(parts.task, *parts.optimizer, training);
  cli::continue_run(trainer, folder, progress);
  log.start(trainer.state().step);
  std::optional<Result> result;
  cli::fit(trainer, log, progress, [&](train::Outcome outcome) {
    result = Result{cell, trainer.state().epoch, {}};
    for (const Measure& measure : measures(options)) result->values.emplace_back(measure.name, measure.of(trainer.state()));
    return as_config(*result, outcome == train::Outcome::stopped_early ? trainer.state().splits.at(0).best.waited : 0);
  });
  return result;
}

}  // namespace lamina::norm_grid
