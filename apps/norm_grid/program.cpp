#include "norm_grid/program.h"

#include <cstdio>

#include <fmt/format.h>

#include <lamina/core/memory.h>
#include <lamina/core/parallel.h>
#include <lamina/train/stop.h>

#include "common/cli.h"
#include "norm_grid/report.h"

namespace lamina::norm_grid {
namespace {

void print_results(const Options& options, const std::vector<Result>& results) {
  fmt::print("{}\n", table(options, results));
  fmt::print("peak tensor memory  {:.1f} MiB\n", static_cast<double>(memory_stats(options.device).peak_bytes) / (1 << 20));
  fmt::print("results             {}/<norm>-n<batch size>-s<seed>/{{run.json,metrics.csv,last.safetensors,best.safetensors}}\n", options.out);
  if (!options.no_figure) {
    const std::string problem = draw_figure(options);
    if (problem.empty())
      fmt::print("figure              {0}/figure.svg\n                    {0}/figure.png\n", options.out);
    else
      fmt::print(stderr, "{}: no figure: {}\n", options.program, problem);
  }
  if (options.json) fmt::print("{}\n", json(results));
}

int run_grid(const Program& program, int argc, char** argv) {
  const std::optional<Options> options = parse_options(program, argc, argv);
  if (!options) return 0;
  if (options->threads > 0) set_num_threads(options->threads);
  const std::vector<Cell> cells = grid(*options);
  const Data data = load_data(*options);
  // Every folder is looked at before the first run starts, so that nothing is found wrong hours later.
  std::vector<std::optional<Result>> finished;
  for (const Cell& cell : cells) finished.push_back(finished_result(*options, data, cell));
  std::error_code error;
  std::filesystem::create_directories(options->out, error);
  if (error) throw InputError(fmt::format("--out: cannot make the folder {}: {}", options->out, error.message()));

  const train::StopOnSignal signals;
  train::Progress progress;
  if (const std::string device = cli::describe_device(options->device, options->machine); !device.empty()) progress.line("on " + device);
  std::vector<Result> results;
  for (size_t i = 0; i < cells.size(); ++i) {
    progress.line(fmt::format("[{}/{}] norm {}, batch size {}, seed {}{}", i + 1, cells.size(), cells[i].norm, cells[i].batch_size, cells[i].seed,
                              finished[i] ? ": finished before" : ""));
    const std::optional<Result> result = finished[i] ? finished[i] : run_cell(*options, data, cells[i], progress);
    if (!result) return 128 + train::stop_signal();
    results.push_back(*result);
    if (train::stop_signal() && i + 1 < cells.size()) return 128 + train::stop_signal();
  }
  print_results(*options, results);
  return 0;
}

}  // namespace

int main(const Program& program, int argc, char** argv) {
  cli::spin_briefly(argv);
  return cli::run(program.presets.front().program, [&] { return run_grid(program, argc, argv); });
}

}  // namespace lamina::norm_grid
