// Recurrent nets on sequences: training, comparing norms, evaluating, predicting, generating text.

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include <lamina/core/memory.h>
#include <lamina/core/parallel.h>
#include <lamina/train/stop.h>

#include "common/cli.h"
#include "common/figure.h"
#include "train_lstm/report.h"
#include "train_lstm/run.h"
#include "train_lstm/use.h"

namespace lamina::train_lstm {
namespace {

namespace fs = std::filesystem;

void print_results(const Options& options, const std::vector<Result>& results) {
  const bool comparison = !options.norms.empty();
  fmt::print("{}\npeak tensor memory  {:.1f} MiB\n", table(results), static_cast<double>(memory_stats(options.device).peak_bytes) / (1 << 20));
  fmt::print("results             {}{}/{{run.json,metrics.csv,last.safetensors,best.safetensors}}\n", options.out, comparison ? "/<norm>" : "");
  if (options.task == "text" && !comparison) fmt::print("text from it        {} --sample 500 --out {}\n", options.program, options.out);
  if (comparison && !options.no_figure) {
    const std::string problem = cli::draw_figure("plot.py", {fs::absolute(options.out).string()});
    if (problem.empty())
      fmt::print("figure              {0}/figure.svg\n                    {0}/figure.png\n", options.out);
    else
      fmt::print(stderr, "train_lstm: no figure: {}\n", problem);
  }
  if (options.json) fmt::print("{}\n", json(results));
}

int train(const Options& options) {
  const std::vector<std::string> norms = norms_of(options);
  // Every model is built and every folder looked at before the first run starts, so that nothing is found wrong hours later.
  const Data data = load_data(options);
  std::vector<std::optional<Result>> finished;
  for (const std::string& norm : norms) {
    Recipe recipe = data.recipe;
    recipe.norm = norm;
    train::SequenceModel model(model_options(recipe));
    finished.push_back(finished_result(options, data, norm));
  }
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error) throw InputError(fmt::format("--out: cannot make the folder {}: {}", options.out, error.message()));

  const train::StopOnSignal signals;
  train::Progress progress;
  progress.line(data.description);
  if (const std::string device = cli::describe_device(options.device, options.machine); !device.empty()) progress.line("on " + device);
  std::vector<Result> results;
  for (size_t i = 0; i < norms.size(); ++i) {
    progress.line(fmt::format("[{}/{}] {}, norm {}{}", i + 1, norms.size(), options.cell, norms[i], finished[i] ? ": finished before" : ""));
    const std::optional<Result> result = finished[i] ? finished[i] : run(options, data, norms[i], progress);
    if (!result) return 128 + train::stop_signal();
    results.push_back(*result);
    if (train::stop_signal() && i + 1 < norms.size()) return 128 + train::stop_signal();
  }
  print_results(options, results);
  return 0;
}

int main(int argc, char** argv) {
  const std::optional<Options> options = parse_options(argc, argv);
  if (!options) return 0;
  if (options->threads > 0) set_num_threads(options->threads);
  if (!options->eval.empty())
    evaluate(*options);
  else if (!options->predict.empty())
    predict(*options);
  else if (options->sample > 0)
    sample(*options);
  else
    return train(*options);
  return 0;
}

}  // namespace
}  // namespace lamina::train_lstm

int main(int argc, char** argv) {
  lamina::cli::spin_briefly(argv);
  return lamina::cli::run("train_lstm", [&] { return lamina::train_lstm::main(argc, argv); });
}
