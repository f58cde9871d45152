// bench: times the named workloads and sets them beside their floors.
//   bench --filter step/mlp            a table
//   bench --filter op/ --json          one JSON line per workload
// "us" is the best over repeats of the mean of a burst; "ratio" is us / floor_us. On a busy machine ratios mean nothing: the row says so.

#include <fmt/format.h>
#include <lamina/lamina.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/floor.h"
#include "bench/workloads.h"
#include "common/cli.h"

namespace {

struct Options {
  std::string filter;
  bool json = false, list = false;
  int threads = lamina::num_threads();
  int repeat = 5;
};

void print_row(const Options& options, const bench::Workload& workload, double us, double flop_us, double move_us, bool busy) {
  const double floor_us = flop_us + move_us;
  if (options.json) {
    const nlohmann::ordered_json row{{"name", workload.name},  {"us", us},    {"floor_us", floor_us}, {"flop_us", flop_us}, {"move_us", move_us},
                                     {"ratio", us / floor_us}, {"busy", busy}};
    fmt::print("{}\n", row.dump());
  } else {
    fmt::print("{:<32} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.1f} {:>7.2f}{}\n", workload.name, us, floor_us, flop_us, move_us, us / floor_us,
               busy ? "  (machine busy: not a measurement)" : "");
  }
  std::fflush(stdout);
}

int run(const Options& options) {
  lamina::set_num_threads(options.threads);
  bench::Floor floor(options.repeat);
  int matched = 0;
  for (const bench::Workload& workload : bench::workloads()) {
    if (workload.name.find(options.filter) == std::string::npos) continue;
    ++matched;
    if (options.list) {
      fmt::print("{}\n", workload.name);
      continue;
    }
    if (matched == 1 && !options.json)
      fmt::print("{} threads, {}, GEMM peak {:.0f} GFLOP/s\n{:<32} {:>11} {:>11} {:>11} {:>11} {:>7}\n", options.threads, lamina::blas_description(),
                 floor.peak_flops() * 1e-9, "workload", "us", "floor us", "flop us", "move us", "ratio");
    const double flop_us = floor.flop_seconds(workload.work) * 1e6, move_us = floor.move_seconds(workload.work) * 1e6;
    const double us = bench::time_burst(workload.make(), options.repeat).seconds * 1e6;
    print_row(options, workload, us, flop_us, move_us, floor.machine_is_busy());
  }
  if (matched == 0) throw lamina::InputError("--filter: no workload's name contains '" + options.filter + "' (--list shows them)");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lamina::cli::spin_briefly(argv);
  return lamina::cli::run("bench", [&] {
    CLI::App app("Times lamina's workloads against their floors", "bench");
    Options options;
    app.option_defaults()->always_capture_default();
    app.add_option("--filter", options.filter, "only workloads whose name contains this");
    app.add_flag("--json", options.json, "one JSON line per workload");
    app.add_flag("--list", options.list, "print the names and stop");
    app.add_option("--threads", options.threads, "threads")->check(CLI::Range(1, 1024));
    app.add_option("--repeat", options.repeat, "bursts per workload")->check(CLI::Range(1, 1000));
    return lamina::cli::parse(app, argc, argv) ? run(options) : 0;
  });
}
