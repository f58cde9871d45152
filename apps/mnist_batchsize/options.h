#pragma once
// The options of mnist_batchsize. Each choice that the paper leaves open is one.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lamina/nn/norm.h>
#include <lamina/train/run_log.h>

namespace lamina::mnist_batchsize {

struct Options {
  std::vector<std::string> norms{"none", "layer", "batch"};
  std::vector<int64_t> batch_sizes{128, 4};
  std::vector<int64_t> seeds{1};
  int64_t epochs = 60;
  int64_t limit = 0;
  std::string dataset = "mnist";
  std::string data;
  std::string out = "runs/mnist_batchsize";
  bool resume = false;
  int64_t eval_every = 0;
  int64_t checkpoint_every = 0;
  int64_t patience = 0;

  std::vector<int64_t> hidden{1000, 1000};
  std::string init = "pytorch";
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
  double clip_norm = 0.0;
  std::string schedule = "constant";

  std::string device = "auto";
  int threads = 0;
  bool json = false;
  bool no_figure = false;
};

/// Reads and checks the command line; nothing when help was asked for. Throws InputError.
std::optional<Options> parse_options(int argc, char** argv);

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

}  // namespace lamina::mnist_batchsize
