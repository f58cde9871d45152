#pragma once
// The options of mnist_batchsize and norm_compare: programs that train a net for every norm, batch size and seed. The defaults are those of
// mnist_batchsize, where each choice that the paper leaves open is an option.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lamina/nn/norm.h>
#include <lamina/train/run_log.h>

#include "common/cli.h"

namespace lamina::norm_grid {

struct Options {
  std::string program = "mnist_batchsize";
  bool comparison = false;  // norm_compare: options for depth, dropout, decay; accuracies of validation and training images instead of test errors
  std::string preset;       // where a program has several

  std::vector<std::string> norms{"none", "layer", "batch"};
  std::vector<int64_t> batch_sizes{128, 4};
  std::vector<int64_t> seeds{1};
  int64_t epochs = 60;
  int64_t limit = 0;
  std::string dataset = "mnist";
  std::vector<std::string> datasets{"mnist", "fashion"};  // to choose from
  std::string data;
  std::string out = "runs/mnist_batchsize";
  bool resume = false;
  int64_t eval_every = 0;
  int64_t checkpoint_every = 0;
  int64_t patience = 0;

  std::vector<int64_t> hidden{1000, 1000};
  int64_t depth = 0, width = 0;  // of a comparison: they make `hidden`
  double dropout = 0;
  std::string init = "pytorch";
  std::string bias_init = "pytorch";
  bool norm_output = false;
  bool norm_after_relu = false;
  std::string input_range = "unit";
  double bn_momentum = 0.1;
  std::string bn_eval = "running";
  std::string bn_variance = "auto";

  std::string optimizer = "adam";
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.0;
  double weight_decay = 0.0;
  double clip_norm = 0.0;
  std::string schedule = "constant";

  cli::Machine machine;
  Device device;  // that `machine` came to
  int threads = 0;
  bool json = false;
  bool no_figure = false;
};

/// A program: what it says of itself, and its sets of defaults, of which the first holds unless --preset names another.
struct Program {
  std::string description;
  std::vector<Options> presets;
};

/// Reads and checks the command line; nothing when help was asked for. Throws InputError.
std::optional<Options> parse_options(const Program& program, int argc, char** argv);

/// Of MNIST and its like.
inline constexpr int64_t classes = 10;

/// One run of the grid.
struct Cell {
  std::string norm;
  int64_t batch_size = 0;
  int64_t seed = 0;

  /// "<norm>-n<batch size>-s<seed>"
  std::string name() const;
};
std::vector<Cell> grid(const Options& options);

/// Batch norm below this batch size uses the unbiased variance when --bn-variance is auto.
inline constexpr int64_t small_batch = 32;
bool unbiased_variance(const Options& options, int64_t batch_size);

/// What run.json records; the options that do not touch this cell's results are left out.
train::RunInfo describe(const Options& options, const Cell& cell);

}  // namespace lamina::norm_grid
