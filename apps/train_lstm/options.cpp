#include "train_lstm/options.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lamina/data/text.h>
#include <lamina/nn/init.h>
#include <lamina/optim/schedule.h>

#include "common/cli.h"

namespace lamina::train_lstm {
namespace {

constexpr const char* description =
    "Trains recurrent nets (LSTM, GRU, RNN; with any of the normalisations of \"Layer Normalization\", Ba, Kiros, Hinton 2016, and its neighbours) "
    "on\n"
    "sequences, and uses them.\n"
    "  train_lstm --task text input.txt --out runs/text      a language model of a text file\n"
    "  train_lstm --sample 500 --out runs/text               text from it\n"
    "  train_lstm --norms none,layer,batch --out runs/rows   MNIST row by row, with a figure of the three";
constexpr const char* footer =
    "Tasks:\n"
    "  text FILE   predict the next character; a state is carried through the text, gradients through --bptt steps. The last part validates.\n"
    "  rows        MNIST, a row of 28 pixels a step; the last state is classified. The first 5,000 training images validate.\n"
    "  pixels      MNIST, a pixel a step (784), perhaps in a permuted order.\n"
    "  adding      the sum of the two marked numbers among --length; always saying 1 has mean squared error 0.167.\n"
    "  copy        say ten symbols again after --length blanks; guessing has NLL 2.08. Both are drawn anew each step, 100 steps an epoch.\n"
    "  csv FILE    your own sequences. A header names the columns; rows with the same id (--id) stand together and are one sequence, a row a step;\n"
    "              the target (--classify or --regress) is read from a sequence's last row; all other columns (but --ignore) are inputs, finite\n"
    "              numbers. Inputs and numbers to regress are standardised over the training sequences; the mean squared error is in units of the\n"
    "              variance.\n"
    "A run leaves OUT/: run.json, metrics.csv, last.safetensors (to resume), best.safetensors (best on the validation data); with --norms "
    "OUT/<norm>/\n"
    "each, and figure.svg and figure.png. Both checkpoints hold the model's options, vocabulary and columns, so they are all it takes to use it.\n"
    "Results go to standard output, progress to standard error.\n"
    "Exit codes: 0 done, 1 failed (e.g. a loss that is not finite), 2 bad usage or input, 130 or 143 stopped by a signal and saved.";

CLI::Option* grouped(CLI::Option* option, const std::string& group, const std::string& type) { return option->group(group)->type_name(type); }

void add_data(CLI::App& app, Options& o) {
  const std::string group = "What is learned";
  grouped(app.add_option("FILE", o.file, "The text or CSV file"), group, "");
  grouped(app.add_option("--task", o.task, "text, rows, pixels, adding, copy or csv (see below)"), group, "NAME")
      ->check(CLI::IsMember({"text", "rows", "pixels", "adding", "copy", "csv"}));
  grouped(app.add_option("--unit", o.unit,
                         "text: a symbol is a character (UTF-8; CR LF is read as LF, a byte order mark dropped) or a byte (any file, as it is)"),
          group, "NAME")
      ->check(CLI::IsMember({"character", "byte"}));
  grouped(app.add_option("--bptt", o.bptt, "text: steps that gradients go back"), group, "N")->transform(cli::whole_at_least(1));
  grouped(app.add_option("--validation", o.validation, "text: this part at the end validates; csv: this part of the sequences, drawn by --seed"),
          group, "X")
      ->check(cli::from_to_below(0, 1) & cli::greater_than(0));
  grouped(app.add_option("--length", o.length, "adding: steps; copy: blanks between"), group, "N")->transform(cli::whole_at_least(1));
  grouped(app.add_option("--permute", o.permute, "pixels: seed of a fixed permutation of the pixels; 0: in order"), group, "N")
      ->transform(cli::whole_at_least(0));
  grouped(app.add_option("--limit", o.limit, "rows, pixels: train on the first N training images only; 0: all"), group, "N")
      ->transform(cli::whole_at_least(0));
  grouped(app.add_option("--data", o.data, "rows, pixels: folder of the four IDX files; empty: the data that comes with lamina"), group, "DIR");
  grouped(app.add_option("--id", o.id, "csv: column that says which rows are one sequence"), group, "NAME");
  grouped(app.add_option("--classify", o.classify, "csv: column of class names to tell"), group, "NAME");
  grouped(app.add_option("--regress", o.regress, "csv: columns of numbers to tell")->delimiter(','), group, "LIST");
  grouped(app.add_option("--ignore", o.ignore, "csv: columns to pass over")->delimiter(','), group, "LIST");
}

void add_model(CLI::App& app, Options& o) {
  const std::string group = "Model";
  grouped(app.add_option("--cell", o.cell, "lstm, gru or rnn (tanh)"), group, "NAME")->check(CLI::IsMember({"lstm", "gru", "rnn"}));
  grouped(app.add_option("--norm", o.norm,
                         fmt::format("Normalisation inside the cell: {}", fmt::join(nn::Recurrent::norm_names(RecurrentCell::lstm), ", "))),
          group, "NAME");
  grouped(app.add_option("--norms", o.norms, "Several, one after the other, with a figure")->delimiter(','), group, "LIST");
  grouped(app.add_option("--layers", o.layers, "Recurrent layers"), group, "N")->transform(cli::whole_at_least(1));
  grouped(app.add_option("--hidden", o.hidden, "Width of the state"), group, "N")->transform(cli::whole_at_least(1));
  grouped(app.add_option("--embedding", o.embedding, "text: width of a symbol's vector; 0: one-hot"), group, "N")->transform(cli::whole_at_least(0));
  grouped(app.add_flag("--bidirectional", o.bidirectional, "Read in both directions (not text)"), group, "");
  grouped(app.add_option("--dropout", o.dropout, "Between the layers and after the last one"), group, "X")->check(cli::from_to_below(0, 1));
  grouped(app.add_option(
              "--state-noise", o.state_noise,
              "Deviation of Gaussian noise on the first h in training (0.1 for batch norm on images in order, whose first steps are constant)"),
          group, "X")
      ->check(cli::at_least(0));
  grouped(
      app.add_option("--init", o.init, "Initial weights: pytorch, or per gate xavier_uniform, xavier_normal, orthogonal, normal:STD, uniform:BOUND"),
      group, "RULE");
  const auto number = [&](const char* name, std::optional<double>& value, const char* text) {
    grouped(app.add_option_function<double>(
                name, [&value](double x) { value = x; }, text),
            group, "X")
        ->check(cli::at_least(-1e6));
  };
  number("--forget-bias", o.forget_bias, "lstm: the forget gate's first bias, in all; default: as --init draws it");
  number("--gain", o.gain, "The norm's first gain; default: 1, with batch 0.1");
}

void add_training(CLI::App& app, Options& o) {
  const std::string group = "Training";
  grouped(app.add_option("--batch-size", o.batch_size, "Sequences in a batch; text: streams read side by side"), group, "N")
      ->transform(cli::whole_at_least(1));
  grouped(app.add_option("--epochs", o.epochs, "Passes over the data; 0: go by --steps, or text 10, csv 50, rows and pixels 5, adding and copy 20"),
          group, "N")
      ->transform(cli::whole_at_least(0));
  grouped(app.add_option("--steps", o.steps, "Optimiser steps, in place of --epochs; 0: go by epochs"), group, "N")
      ->transform(cli::whole_at_least(0));
  grouped(app.add_option("--optimizer", o.optimizer, "adam or sgd"), group, "NAME")->check(CLI::IsMember({"adam", "sgd"}));
  grouped(app.add_option("--lr", o.lr, "Learning rate"), group, "X")->check(cli::greater_than(0));
  grouped(app.add_option("--momentum", o.momentum, "sgd: momentum"), group, "X")->check(cli::from_to_below(0, 1));
  grouped(app.add_option("--clip", o.clip, "Scale gradients to at most this joint norm; 0: never"), group, "X")->check(cli::at_least(0));
  grouped(
      app.add_option(
          "--schedule", o.schedule,
          "Factor on the learning rate, by step: constant, step:PERIOD:FACTOR, cosine:STEPS, linear:STEPS, inverse_sqrt; \"warmup=STEPS,\" before"),
      group, "RULE");
  grouped(app.add_option("--patience", o.patience, "Stop after N epochs without a better validation; 0: never"), group, "N")
      ->transform(cli::whole_at_least(0));
  grouped(app.add_option("--eval-every", o.eval_every, "Also evaluate every N steps; 0: after each epoch only"), group, "N")
      ->transform(cli::whole_at_least(0));
  grouped(app.add_option("--checkpoint-every", o.checkpoint_every, "Also save every N steps; 0: after each epoch only"), group, "N")
      ->transform(cli::whole_at_least(0));
  grouped(app.add_option("--seed", o.seed, "Seed of weights, order of the data, dropout, and what is drawn"), group, "N")
      ->transform(cli::whole_at_least(0));
}

void add_use(CLI::App& app, Options& o) {
  const std::string group = "Using a trained model";
  grouped(
      app.add_option("--eval", o.eval, "Evaluate this checkpoint: a text or csv model on all of FILE, the others on their validation and test data"),
      group, "CHECKPOINT");
  grouped(app.add_option("--predict", o.predict, "What the model says to each sequence of a CSV file, or to each image of an IDX file; as CSV"),
          group, "FILE");
  grouped(app.add_option("--sample", o.sample, "Generate so many symbols of text"), group, "N")->transform(cli::whole_at_least(1));
  grouped(app.add_option("--temperature", o.temperature, "--sample: the logits are divided by this; 0: always the likeliest symbol"), group, "X")
      ->check(cli::at_least(0));
  grouped(app.add_option("--prompt", o.prompt, "--sample: text to go on from; empty: as after a line break"), group, "TEXT");
  grouped(app.add_option("--checkpoint", o.checkpoint, "--sample, --predict: the model; empty: OUT/best.safetensors"), group, "FILE");
}

void add_files(CLI::App& app, Options& o) {
  const std::string group = "Files and output";
  grouped(app.add_option("--out", o.out, "Folder for the results, made if missing"), group, "DIR");
  grouped(app.add_flag("--resume", o.resume, "Continue the run in OUT, bitwise as if never stopped"), group, "");
  grouped(app.add_flag("--json", o.json, "Print the results as JSON in the last line; errors as fractions"), group, "");
  grouped(app.add_flag("--no-figure", o.no_figure, "Do not draw the figure of --norms (it needs python3 with matplotlib)"), group, "");
  cli::add_machine(app, o.machine, group, true);
  grouped(app.add_option("--threads", o.threads, "Threads; 0: all cores this process may use"), group, "N")->transform(cli::whole_at_least(0));
}

// Options of single tasks, refused where they would do nothing.
struct Belongs {
  const char* option;
  std::vector<std::string> tasks;
};
const std::vector<Belongs>& belongings() {
  static const std::vector<Belongs> list{
      {"FILE", {"text", "csv"}},
      {"--unit", {"text"}},
      {"--bptt", {"text"}},
      {"--validation", {"text", "csv"}},
      {"--length", {"adding", "copy"}},
      {"--permute", {"pixels"}},
      {"--limit", {"rows", "pixels"}},
      {"--data", {"rows", "pixels"}},
      {"--id", {"csv"}},
      {"--classify", {"csv"}},
      {"--regress", {"csv"}},
      {"--ignore", {"csv"}},
      {"--embedding", {"text"}},
  };
  return list;
}

void named(const char* option, const std::function<void()>& parse) {
  try {
    parse();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", option, error.what()));
  }
}

void check_norms(const Options& o) {
  const std::vector<std::string> known = nn::Recurrent::norm_names(parse_cell(o.cell));
  const char* option = o.norms.empty() ? "--norm" : "--norms";
  cli::require_distinct("--norms", o.norms);
  for (const std::string& norm : norms_of(o)) {
    if (std::ranges::count(known, norm) == 0)
      throw InputError(fmt::format("{}: unknown '{}' for {}; expected one of {}", option, norm, o.cell, fmt::join(known, ", ")));
    if (norm != "batch") continue;
    if (o.task == "text")
      throw InputError(fmt::format(
          "{}: batch keeps statistics for each step from a sequence's start, and a text whose state is carried over has no start", option));
    if (o.batch_size == 1) throw InputError(fmt::format("--batch-size: batch norm needs at least 2 sequences in a batch, got 1 (norm '{}')", norm));
  }
}

void check_training(const CLI::App& app, const Options& o) {
  for (const Belongs& entry : belongings())
    if (app.count(entry.option) > 0 && std::ranges::count(entry.tasks, o.task) == 0)
      throw InputError(fmt::format("{}: belongs to --task {}, not to {}", entry.option, fmt::join(entry.tasks, " and "), o.task));
  const bool needs_file = o.task == "text" || o.task == "csv";
  if (needs_file && o.file.empty()) throw InputError(fmt::format("--task {0}: expected a file: train_lstm --task {0} FILE", o.task));
  if (o.task == "csv" && o.classify.empty() == o.regress.empty())
    throw InputError("--task csv: expected either --classify COLUMN or --regress COLUMNS");
  cli::require_distinct("--regress", o.regress);
  cli::require_distinct("--ignore", o.ignore);
  if (o.task == "adding" && o.length < 2) throw InputError(fmt::format("--length: expected at least 2 for adding, got {}", o.length));
  if (o.task == "text" && o.bidirectional)
    throw InputError("--bidirectional: a text is read forward, for the other direction reads what is to be predicted");
  if (app.count("--norm") > 0 && app.count("--norms") > 0) throw InputError("--norm and --norms: expected one of them, got both");
  if (o.epochs > 0 && o.steps > 0) throw InputError("--epochs and --steps: expected one of them, got both");
  if (o.forget_bias && o.cell != "lstm") throw InputError(fmt::format("--forget-bias: {} has no forget gate", o.cell));
  check_norms(o);
  named("--init", [&] {
    if (o.init != "pytorch") nn::init::parse(o.init, Shape{1, 1});
  });
  named("--schedule", [&] { optim::Schedule::parse(o.schedule); });
}

// A model that is used says itself what it is: an option that would do nothing is refused. (Those of a --config file may belong to its training.)
void check_use(const CLI::App& app, const std::string& mode) {
  static const std::map<std::string, std::vector<std::string>> used{
      {"--eval", {"FILE", "--data", "--seed", "--json"}},
      {"--predict", {"--checkpoint"}},
      {"--sample", {"--checkpoint", "--seed", "--temperature", "--prompt"}},
  };
  static const std::vector<std::string> always{"--out", "--device", "--tf32", "--threads"};
  if (app.count("--config") > 0) return;
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return o->count() > 0; })) {
    const std::string name = option->get_name();
    if (name != mode && std::ranges::count(used.at(mode), name) == 0 && std::ranges::count(always, name) == 0)
      throw InputError(fmt::format("{}: would do nothing with {}", name, mode));
  }
}

void check(const CLI::App& app, const Options& o) {
  const int modes = !o.eval.empty() + !o.predict.empty() + (o.sample > 0);
  if (modes > 1) throw InputError("--eval, --predict and --sample: expected one of them");
  for (const char* option : {"--temperature", "--prompt"})
    if (app.count(option) > 0 && o.sample == 0) throw InputError(fmt::format("{}: needs --sample N", option));
  if (app.count("--checkpoint") > 0 && o.sample == 0 && o.predict.empty()) throw InputError("--checkpoint: needs --sample or --predict");
  if (modes == 0)
    check_training(app, o);
  else
    check_use(app, !o.eval.empty() ? "--eval" : !o.predict.empty() ? "--predict" : "--sample");
  if (o.machine.cuda_graph && o.state_noise > 0) throw InputError("--cuda-graph: not with --state-noise, which is drawn anew for each step");
  if (o.threads > 1024) throw InputError(fmt::format("--threads: expected at most 1024, got {}", o.threads));
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  options.program = argv[0];
  CLI::App app(description, "train_lstm");
  cli::set_up(app);
  app.footer(footer);
  add_data(app, options);
  add_model(app, options);
  add_training(app, options);
  add_use(app, options);
  add_files(app, options);
  if (!cli::parse(app, argc, argv)) return std::nullopt;
  check(app, options);
  options.device = cli::choose_device("train_lstm", options.machine);
  return options;
}

RecurrentCell parse_cell(const std::string& name) {
  return name == "lstm" ? RecurrentCell::lstm : name == "gru" ? RecurrentCell::gru : RecurrentCell::rnn;
}

std::vector<std::string> norms_of(const Options& options) { return options.norms.empty() ? std::vector{options.norm} : options.norms; }

int64_t default_epochs(const std::string& task) { return task == "text" ? 10 : task == "csv" ? 50 : task == "rows" || task == "pixels" ? 5 : 20; }

train::RunInfo describe(const Options& o, const std::string& norm) {
  train::Config config{{"task", o.task},     {"cell", o.cell},       {"norm", norm},
                       {"layers", o.layers}, {"hidden", o.hidden},   {"bidirectional", o.bidirectional},
                       {"init", o.init},     {"dropout", o.dropout}, {"state_noise", o.state_noise}};
  const auto add = [&](const char* name, train::ConfigValue value) { config.emplace_back(name, std::move(value)); };
  if (o.forget_bias) add("forget_bias", *o.forget_bias);
  if (o.gain) add("gain", *o.gain);
  if (o.task == "text" || o.task == "csv") {
    add("file", o.file);
    add("validation", o.validation);
  }
  if (o.task == "text") {
    add("embedding", o.embedding);
    add("unit", o.unit);
    add("bptt", o.bptt);
  }
  if (o.task == "csv") {
    add("id", o.id);
    if (!o.classify.empty()) add("classify", o.classify);
    if (!o.regress.empty()) add("regress", fmt::format("{}", fmt::join(o.regress, ",")));
    if (!o.ignore.empty()) add("ignore", fmt::format("{}", fmt::join(o.ignore, ",")));
  }
  if (o.task == "adding" || o.task == "copy") add("length", o.length);
  if (o.task == "pixels") add("permute", o.permute);
  if (o.task == "rows" || o.task == "pixels") {
    add("limit", o.limit);
    add("data", o.data);
  }
  add("batch_size", o.batch_size);
  add("epochs", o.epochs);
  add("steps", o.steps);
  add("optimizer", o.optimizer);
  add("lr", o.lr);
  if (o.optimizer == "sgd") add("momentum", o.momentum);
  add("clip", o.clip);
  add("schedule", o.schedule);
  add("patience", o.patience);
  add("eval_every", o.eval_every);
  add("checkpoint_every", o.checkpoint_every);
  add("seed", o.seed);
  if (o.machine.tf32) add("tf32", true);
  return {"train_lstm",
          std::move(config),
          {"epochs", "steps", "patience", "eval_every", "checkpoint_every", "data", "file", "tf32"},
          static_cast<uint64_t>(o.seed),
          o.device};
}

}  // namespace lamina::train_lstm
