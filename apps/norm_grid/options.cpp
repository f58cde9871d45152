#include "norm_grid/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lamina/nn/init.h>
#include <lamina/optim/schedule.h>

#include "common/cli.h"

namespace lamina::norm_grid {
namespace {

constexpr const char* footer =
    "Each run leaves OUT/<norm>-n<batch size>-s<seed>/: run.json, metrics.csv, last.safetensors (to resume), best.safetensors (lowest validation\n"
    "error, PyTorch's names). Results go to standard output, progress to standard error.\n"
    "Exit codes: 0 done, 1 failed (e.g. a loss that is not finite), 2 bad usage or input, 130 or 143 stopped by a signal and saved.";

void add_experiment(CLI::App& app, Options& o, const Program& program) {
  const std::string group = "What is run";
  if (program.presets.size() > 1) {
    std::vector<std::string> names;
    for (const Options& preset : program.presets) names.push_back(preset.preset);
    app.add_option("--preset", o.preset, fmt::format("Set of defaults for all other options: {}", fmt::join(names, " or ")))
        ->group(group)
        ->type_name("NAME")
        ->check(CLI::IsMember(names));
  }
  app.add_option("--norms", o.norms,
                 fmt::format("Normalisers: any of {}", fmt::join(nn::norm_names({.features = o.hidden.empty() ? 1000 : o.hidden[0]}), ", ")))
      ->delimiter(',')
      ->group(group)
      ->type_name("LIST");
  app.add_option("--batch-sizes", o.batch_sizes, "Batch sizes")->delimiter(',')->group(group)->type_name("LIST")->transform(cli::whole_at_least(1));
  app.add_option("--seeds", o.seeds, "Seeds of initial weights and order of images; the figure shows mean and band over them")
      ->delimiter(',')
      ->group(group)
      ->type_name("LIST")
      ->transform(cli::whole_at_least(0));
  app.add_option("--epochs", o.epochs, "Passes over the training images")->group(group)->type_name("N")->transform(cli::whole_at_least(1));
  app.add_option("--limit", o.limit, "Train on the first N training images only; 0: all")
      ->group(group)
      ->type_name("N")
      ->transform(cli::whole_at_least(0));
  app.add_option("--dataset", o.dataset, fmt::format("Images: {}", fmt::join(o.datasets, " or ")))
      ->group(group)
      ->type_name("NAME")
      ->check(CLI::IsMember(o.datasets));
  app.add_option("--patience", o.patience, "Stop a run after N epochs without a lower validation error; 0: never")
      ->group(group)
      ->type_name("N")
      ->transform(cli::whole_at_least(0));
}

void add_files(CLI::App& app, Options& o) {
  const std::string group = "Files and output";
  app.add_option("--data", o.data,
                 o.comparison ? "Folder of the files (IDX, plain or gzipped; CIFAR-10's binary ones); empty: where scripts/fetch_data.sh puts them"
                              : "Folder of the four IDX files, plain or gzipped; empty: the data that comes with lamina")
      ->group(group)
      ->type_name("DIR");
  app.add_option("--out", o.out, "Folder for the results, made if missing")->group(group)->type_name("DIR");
  app.add_flag("--resume", o.resume, "Skip runs that are finished in OUT and continue those that are not, bitwise as if never stopped")->group(group);
  app.add_option("--eval-every", o.eval_every, "Also evaluate every N steps; 0: after each epoch only")
      ->group(group)
      ->type_name("N")
      ->transform(cli::whole_at_least(0));
  app.add_option("--checkpoint-every", o.checkpoint_every, "Also save every N steps; 0: after each epoch only")
      ->group(group)
      ->type_name("N")
      ->transform(cli::whole_at_least(0));
  app.add_flag("--json", o.json, "Print the results as JSON in the last line; errors as fractions")->group(group);
  app.add_flag("--no-figure", o.no_figure, "Do not draw the figure (it needs python3 with matplotlib)")->group(group);
}

void add_model(CLI::App& app, Options& o) {
  const std::string group = o.comparison ? "Model" : "Choices the paper leaves open: model";
  if (o.comparison) {
    app.add_option("--depth", o.depth, "Hidden layers, at most 10,000")->group(group)->type_name("N")->transform(cli::whole_at_least(1));
    app.add_option("--width", o.width, "Units of each")->group(group)->type_name("N")->transform(cli::whole_at_least(1));
    app.add_option("--dropout", o.dropout, "Part of the hidden units dropped in training, after the ReLU")
        ->group(group)
        ->type_name("X")
        ->check(cli::from_to_below(0, 1));
    app.add_option("--bias-init", o.bias_init, "Initial biases: pytorch or a rule as for --init, or zeros")->group(group)->type_name("RULE");
  } else {
    app.add_option("--hidden", o.hidden, "Widths of the hidden layers")
        ->delimiter(',')
        ->group(group)
        ->type_name("LIST")
        ->transform(cli::whole_at_least(1));
  }
  app.add_option("--init", o.init,
                 "Initial weights: pytorch (U(-b, b), b = 1/sqrt(inputs), biases too), xavier_uniform, xavier_normal, he_uniform, "
                 "he_normal, orthogonal, normal:STD, uniform:BOUND")
      ->group(group)
      ->type_name("RULE");
  app.add_flag("--norm-output", o.norm_output, "Normalise the logits too")->group(group);
  app.add_flag("--norm-after-relu", o.norm_after_relu, "Linear, ReLU, norm instead of linear, norm, ReLU")->group(group);
  app.add_option("--input-range", o.input_range, "Pixels: unit ([0, 1]) or standard (mean 0, variance 1 over the training images)")
      ->group(group)
      ->type_name("NAME")
      ->check(CLI::IsMember({"unit", "standard"}));
  app.add_option("--bn-momentum", o.bn_momentum, "Batch norm: running = (1 - momentum) running + momentum batch")
      ->group(group)
      ->type_name("X")
      ->check(cli::from_to(0, 1));
  app.add_option("--bn-eval", o.bn_eval,
                 "Batch norm evaluates with running averages (running), or with averages of an extra pass over the training images before each "
                 "evaluation (population)")
      ->group(group)
      ->type_name("NAME")
      ->check(CLI::IsMember({"running", "population"}));
  app.add_option(
         "--bn-variance", o.bn_variance,
         fmt::format("Batch norm's variance in training: biased, unbiased, or auto: unbiased (the paper's choice for its small batch) for batch "
                     "sizes below {}, else biased",
                     small_batch))
      ->group(group)
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "biased", "unbiased"}));
}

void add_optimizer(CLI::App& app, Options& o) {
  const std::string group = o.comparison ? "Optimiser" : "Choices the paper leaves open: optimiser";
  if (o.comparison)
    app.add_option("--weight-decay", o.weight_decay, "Times the weights, added to their gradient; gains and biases are spared")
        ->group(group)
        ->type_name("X")
        ->check(cli::at_least(0));
  app.add_option("--optimizer", o.optimizer, o.comparison ? "adam or sgd" : "adam (the paper's) or sgd")
      ->group(group)
      ->type_name("NAME")
      ->check(CLI::IsMember({"adam", "sgd"}));
  app.add_option("--lr", o.lr, "Learning rate")->group(group)->type_name("X")->check(cli::greater_than(0));
  app.add_option("--beta1", o.beta1, "Adam: decay of the first moment")->group(group)->type_name("X")->check(cli::from_to_below(0, 1));
  app.add_option("--beta2", o.beta2, "Adam: decay of the second moment")->group(group)->type_name("X")->check(cli::from_to_below(0, 1));
  // A smaller one is 0 in f32, and weights whose gradient is always 0 (those of black pixels) would become 0 / 0.
  app.add_option("--eps", o.eps, "Adam: added to the root of the second moment")->group(group)->type_name("X")->check(cli::at_least(1e-37));
  app.add_option("--momentum", o.momentum, "SGD: momentum")->group(group)->type_name("X")->check(cli::from_to_below(0, 1));
  app.add_option("--clip-norm", o.clip_norm, "Scale gradients to at most this joint norm; 0: never")
      ->group(group)
      ->type_name("X")
      ->check(cli::at_least(0));
  app.add_option("--schedule", o.schedule,
                 "Factor on the learning rate, by step: constant, step:PERIOD:FACTOR, cosine:STEPS, linear:STEPS, inverse_sqrt; "
                 "\"warmup=STEPS,\" before")
      ->group(group)
      ->type_name("RULE");
}

void add_machine(CLI::App& app, Options& o) {
  const std::string group = "Machine";
  cli::add_machine(app, o.machine, group, true);
  app.add_option("--threads", o.threads, "Threads; 0: all cores this process may use")
      ->group(group)
      ->type_name("N")
      ->transform(cli::whole_at_least(0));
}

// What single options cannot see.
void check(const Options& o) {
  const auto named = [](const char* option, auto&& parse) {
    try {
      parse();
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}", option, error.what()));
    }
  };
  if (o.norms.empty() || o.batch_sizes.empty() || o.seeds.empty()) throw InputError("--norms, --batch-sizes, --seeds: expected at least one of each");
  cli::require_distinct("--batch-sizes", o.batch_sizes);
  cli::require_distinct("--seeds", o.seeds);
  std::vector<int64_t> widths = o.hidden;
  if (o.norm_output) widths.push_back(classes);
  std::vector<std::string> norms;
  for (const std::string& norm : o.norms)
    named("--norms", [&] {
      const nn::NormSpec spec = nn::NormSpec::parse(norm, nn::norm_names({.features = widths.empty() ? classes : widths[0]}));
      norms.push_back(spec.str());
      for (const int64_t width : widths) nn::make_norm(spec, {.builder = "mlp", .features = width});
    });
  cli::require_distinct("--norms", norms);
  for (const Cell& cell : grid(o))
    if (nn::NormSpec(cell.norm).couples_batch() && cell.batch_size == 1)
      throw InputError(fmt::format("--batch-sizes: batch norm needs at least 2 images in a batch, got 1 (leave '{}' out of --norms)", cell.norm));
  named("--init", [&] { nn::init::parse(o.init, Shape{1, 1}); });
  if (o.bias_init != "pytorch") named("--bias-init", [&] { nn::init::parse(o.bias_init, Shape{1}); });
  named("--schedule", [&] { optim::Schedule::parse(o.schedule); });
  if (o.threads > 1024) throw InputError(fmt::format("--threads: expected at most 1024, got {}", o.threads));
}

// The preset that --preset names, on the command line or in the file for options; the first where none is named. --help shows its values, too.
Options defaults(const Program& program, int argc, char** argv) {
  std::string name;
  if (program.presets.size() > 1) {
    CLI::App app;
    app.set_help_flag("");
    app.allow_extras();
    app.set_config("--config");
    app.add_option("--preset", name);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError&) {  // told of when all options are read
    }
  }
  for (const Options& preset : program.presets)
    if (preset.preset == name) return preset;
  return program.presets.front();
}

bool parse(const Program& program, Options& options, int argc, char** argv) {
  CLI::App app(program.description, options.program);
  cli::set_up(app);
  app.footer(footer);
  add_experiment(app, options, program);
  add_files(app, options);
  add_model(app, options);
  add_optimizer(app, options);
  add_machine(app, options);
  return cli::parse(app, argc, argv);
}

}  // namespace

std::optional<Options> parse_options(const Program& program, int argc, char** argv) {
  Options options = defaults(program, argc, argv);
  if (!parse(program, options, argc, argv)) return std::nullopt;
  if (options.depth > 10'000) throw InputError(fmt::format("--depth: expected at most 10000, got {}", options.depth));
  if (options.comparison) options.hidden.assign(static_cast<size_t>(options.depth), options.width);
  check(options);
  options.device = cli::choose_device(options.program, options.machine);
  return options;
}

std::string Cell::name() const { return fmt::format("{}-n{}-s{}", norm, batch_size, seed); }

std::vector<Cell> grid(const Options& options) {
  std::vector<Cell> cells;
  for (const int64_t batch_size : options.batch_sizes)
    for (const std::string& norm : options.norms)
      for (const int64_t seed : options.seeds) cells.push_back({norm, batch_size, seed});
  return cells;
}

bool unbiased_variance(const Options& options, int64_t batch_size) {
  return options.bn_variance == "unbiased" || (options.bn_variance == "auto" && batch_size < small_batch);
}

train::RunInfo describe(const Options& o, const Cell& cell) {
  train::Config config{{"norm", cell.norm},
                       {"batch_size", cell.batch_size},
                       {"seed", cell.seed},
                       {"dataset", o.dataset},
                       {"limit", o.limit},
                       {"epochs", o.epochs},
                       {"hidden", o.hidden},
                       {"init", o.init},
                       {"norm_output", o.norm_output},
                       {"norm_after_relu", o.norm_after_relu},
                       {"input_range", o.input_range}};
  if (const nn::NormSpec norm = cell.norm; norm.couples_batch()) {
    config.emplace_back("bn_momentum", o.bn_momentum);
    config.emplace_back("bn_eval", o.bn_eval);
    if (!norm.mean_only) config.emplace_back("bn_variance", std::string(unbiased_variance(o, cell.batch_size) ? "unbiased" : "biased"));
  }
  config.emplace_back("optimizer", o.optimizer);
  config.emplace_back("lr", o.lr);
  if (o.optimizer == "adam") {
    config.emplace_back("beta1", o.beta1);
    config.emplace_back("beta2", o.beta2);
    config.emplace_back("eps", o.eps);
  } else {
    config.emplace_back("momentum", o.momentum);
  }
  if (o.comparison) {
    config.emplace_back("dropout", o.dropout);
    config.emplace_back("bias_init", o.bias_init);
    config.emplace_back("weight_decay", o.weight_decay);
  }
  config.emplace_back("clip_norm", o.clip_norm);
  config.emplace_back("schedule", o.schedule);
  config.emplace_back("patience", o.patience);
  config.emplace_back("eval_every", o.eval_every);
  config.emplace_back("checkpoint_every", o.checkpoint_every);
  config.emplace_back("data", o.data);
  if (o.machine.tf32) config.emplace_back("tf32", true);
  return {o.program,
          std::move(config),
          {"epochs", "patience", "eval_every", "checkpoint_every", "data", "tf32"},
          static_cast<uint64_t>(cell.seed),
          o.device};
}

}  // namespace lamina::norm_grid
