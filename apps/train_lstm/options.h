#pragma once
// The options of train_lstm.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lamina/nn/rnn.h>
#include <lamina/train/run_log.h>

#include "common/cli.h"

namespace lamina::train_lstm {

struct Options {
  std::string program;  // as it was called

  std::string task = "rows";
  std::string file;  // of text and csv

  std::string cell = "lstm";
  std::string norm = "none";
  std::vector<std::string> norms;  // a comparison; empty: `norm` alone
  int64_t layers = 1;
  int64_t hidden = 128;
  int64_t embedding = 64;
  bool bidirectional = false;
  double dropout = 0;
  double state_noise = 0;
  std::string init = "pytorch";
  std::optional<double> forget_bias, gain;

  std::string unit = "character";
  int64_t bptt = 100;
  double validation = 0.05;
  int64_t length = 100;
  int64_t permute = 0;
  int64_t limit = 0;
  std::string data;
  std::string id = "sequence", classify;
  std::vector<std::string> regress, ignore;

  int64_t batch_size = 64;
  int64_t epochs = 0, steps = 0;
  int64_t seed = 1;
  std::string optimizer = "adam";
  double lr = 2e-3;
  double momentum = 0.9;
  double clip = 1;
  std::string schedule = "constant";
  int64_t patience = 0;
  int64_t eval_every = 0, checkpoint_every = 0;

  std::string out = "runs/train_lstm";
  bool resume = false;
  bool json = false;
  bool no_figure = false;

  std::string eval, predict;
  int64_t sample = 0;
  double temperature = 1;
  std::string prompt;
  std::string checkpoint;

  cli::Machine machine;
  Device device;  // that `machine` came to
  int threads = 0;
};

/// Reads and checks the command line; nothing when help was asked for. Throws InputError.
std::optional<Options> parse_options(int argc, char** argv);

RecurrentCell parse_cell(const std::string& name);

/// The norms that are run: --norms, or --norm alone.
std::vector<std::string> norms_of(const Options& options);

/// Epochs when neither --epochs nor --steps says.
int64_t default_epochs(const std::string& task);

/// What run.json records; options that do not touch this task are left out.
train::RunInfo describe(const Options& options, const std::string& norm);

}  // namespace lamina::train_lstm
