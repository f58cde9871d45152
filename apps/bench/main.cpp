// bench: times the named workloads and sets them beside their floors, and beside another framework's times.
//   bench --filter step/mlp            a table
//   bench --filter op/ --json          one JSON line per workload
//   bench --filter n4-adam --profile   where the time of a step goes, by kernel family
//   bench --compare peer.jsonl         beside the rows of scripts/peer_pytorch.py; only workloads that both know
// "us" is the best over repeats of the mean of a burst; "ratio" is us / floor_us. On a busy machine ratios mean nothing: such a row is measured
// again, and if the machine stays busy it is left without a ratio and the exit code is 1. Rows that measure the graph have no floor, and nothing to
// tell a busy machine by.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lamina/core/profile.h>
#include <lamina/lamina.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/floor.h"
#include "bench/workloads.h"
#include "common/cli.h"

namespace {

struct Options {
  std::string filter, compare;
  bool json = false, list = false, profile = false;
  int threads = lamina::num_threads();
  int repeat = 5;
  lamina::cli::Machine machine{.device = "cpu"};
  lamina::Device device;  // that `machine` came to
};

/// The other framework's times, by workload.
struct Peer {
  std::string name;
  std::map<std::string, double> us;
};

Peer read_peer(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw lamina::InputError(fmt::format("--compare: cannot read {}", path));
  Peer peer;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    bool good = false;
    try {
      const auto row = nlohmann::json::parse(line);
      const double us = row.at("us").get<double>();
      peer.name = row.value("peer", "peer");
      good = us > 0 && peer.us.emplace(row.at("name").get<std::string>(), us).second;
    } catch (const nlohmann::json::exception&) {
    }
    if (!good)
      throw lamina::InputError(
          fmt::format(R"(--compare: {}: line {}: expected {{"name": (each once), "us": (above 0), "peer": ...}})", path, number));
  }
  if (file.bad()) throw lamina::InputError(fmt::format("--compare: cannot read {}", path));
  if (peer.us.empty()) throw lamina::InputError(fmt::format("--compare: {}: holds no rows", path));
  return peer;
}

struct Row {
  std::string name;
  double us = 0, flop_us = 0, move_us = 0;
  bool busy = false;
  std::optional<double> peer_us;

  double floor_us() const { return flop_us + move_us; }
  std::optional<double> ratio() const { return !busy && floor_us() > 0 ? std::optional(us / floor_us()) : std::nullopt; }
};

Row measure(const bench::Workload& workload, bench::Floor& floor, const Options& options) {
  constexpr int tries = 3;
  Row row;
  row.name = workload.name;
  for (int i = 0; i < tries; ++i) {
    if (i > 0) floor.measure_again();
    row.flop_us = floor.flop_seconds(workload.work) * 1e6;
    row.move_us = floor.move_seconds(workload.work) * 1e6;
    row.us = bench::time_burst(workload.make(), options.repeat, options.device).seconds * 1e6;
    row.busy = row.floor_us() > 0 && floor.machine_is_busy();
    if (!row.busy) break;
  }
  return row;
}

void print_header(const Options& options, const Peer* peer, double peak_flops) {
  if (options.json) return;
  if (const std::string device = lamina::cli::describe_device(options.device, options.machine); !device.empty()) fmt::print("{}, ", device);
  fmt::print("{} threads, {}, GEMM peak {:.0f} GFLOP/s", options.threads, lamina::blas_description(), peak_flops * 1e-9);
  if (peer) fmt::print("; peer: {}", peer->name);
  fmt::print("\n{:<32} {:>11} {:>11} {:>11} {:>11} {:>7}", "workload", "us", "floor us", "flop us", "move us", "ratio");
  if (peer) fmt::print(" {:>11} {:>9}", "peer us", "peer/us");
  fmt::print("\n");
}

void print_row(const Options& options, const Row& row) {
  if (options.json) {
    nlohmann::ordered_json line{{"name", row.name},       {"us", row.us},           {"floor_us", row.floor_us()},
                                {"flop_us", row.flop_us}, {"move_us", row.move_us}, {"ratio", nullptr},
                                {"busy", row.busy}};
    if (const auto ratio = row.ratio()) line["ratio"] = *ratio;
    if (row.peer_us) line["peer_us"] = *row.peer_us;
    fmt::print("{}\n", line.dump());
  } else {
    const std::string unknown = row.busy ? "busy" : "-";
    fmt::print("{:<32} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.1f} {:>7}", row.name, row.us, row.floor_us(), row.flop_us, row.move_us,
               row.ratio() ? fmt::format("{:.2f}", *row.ratio()) : unknown);
    if (row.peer_us) fmt::print(" {:>11.1f} {:>9}", *row.peer_us, row.busy ? "busy" : fmt::format("{:.2f}", *row.peer_us / row.us));
    fmt::print("\n");
  }
  std::fflush(stdout);
}

// What the rows say together; the exit code.
int conclude(const Options& options, const std::vector<Row>& rows, const Peer* peer) {
  std::vector<std::string> slower, busy;
  for (const Row& row : rows) {
    if (row.busy)
      busy.push_back(row.name);
    else if (row.peer_us && *row.peer_us < row.us)
      slower.push_back(row.name);
  }
  if (peer && !options.json && rows.size() > busy.size())
    fmt::print("{} workloads judged, {}\n", rows.size() - busy.size(),
               slower.empty() ? "none slower than the peer" : fmt::format("slower than the peer: {}", fmt::join(slower, ", ")));
  if (busy.empty()) return 0;
  std::fflush(stdout);
  fmt::print(stderr, "bench: the machine was busy, no ratio for {}; stop other jobs and run again\n", fmt::join(busy, ", "));
  return 1;
}

// The rest is what no kernel did: the graph, tensor memory, the workload's own loop, and the readings of the clock.
void print_profile(const Options& options, const bench::Workload& workload) {
  const std::function<void()> step = workload.make();
  const bench::Timing plain = bench::time_burst(step, options.repeat, options.device);
  const int steps = std::max(1, static_cast<int>(0.4 / plain.seconds));
  lamina::start_profile();
  const double start = bench::wall_seconds();
  for (int i = 0; i < steps; ++i) step();
  lamina::synchronize(options.device);
  const double us = (bench::wall_seconds() - start) / steps * 1e6;
  const std::vector<lamina::KernelTime> times = lamina::stop_profile();

  double rest = us;
  nlohmann::ordered_json parts;
  if (!options.json) fmt::print("{}  {:.1f} us a step while profiled, {:.1f} us otherwise\n", workload.name, us, plain.seconds * 1e6);
  for (const lamina::KernelTime& time : times) {
    const double part = time.seconds / steps * 1e6;
    rest -= part;
    parts[time.family] = part;
    if (!options.json)
      fmt::print("  {:<12} {:>9.1f} us {:>6.1f} %  {:>5.1f} calls\n", time.family, part, part / us * 100, static_cast<double>(time.calls) / steps);
  }
  parts["rest"] = rest;
  if (options.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"name", workload.name}, {"us", us}, {"parts", parts}}.dump());
  else
    fmt::print("  {:<12} {:>9.1f} us {:>6.1f} %\n", "rest", rest, rest / us * 100);
}

int run(const Options& options) {
  const int cores = lamina::num_threads();
  lamina::set_num_threads(options.threads);
  std::optional<Peer> peer;
  if (!options.compare.empty()) peer = read_peer(options.compare);
  bench::Floor floor(options.repeat, cores, options.device);
  std::vector<Row> rows;
  int matched = 0;
  for (const bench::Workload& workload : bench::workloads(options.device)) {
    if (workload.name.find(options.filter) == std::string::npos || (peer && !peer->us.contains(workload.name))) continue;
    if (++matched == 1 && !options.list && !options.profile) print_header(options, peer ? &*peer : nullptr, floor.peak_flops());
    if (options.list) {
      fmt::print("{}\n", workload.name);
      continue;
    }
    if (options.profile) {
      print_profile(options, workload);
      continue;
    }
    lamina::release_cached_memory(options.device);  // a workload starts as it would in a program of its own
    Row row = measure(workload, floor, options);
    if (peer) row.peer_us = peer->us.at(workload.name);
    print_row(options, row);
    rows.push_back(std::move(row));
  }
  if (matched == 0)
    throw lamina::InputError("--filter: no workload's name contains '" + options.filter + "'" + (peer ? " and stands in " + options.compare : "") +
                             " (--list shows them)");
  return options.list || options.profile ? 0 : conclude(options, rows, peer ? &*peer : nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  lamina::cli::spin_briefly(argv);
  return lamina::cli::run("bench", [&] {
    CLI::App app("Times lamina's workloads against their floors", "bench");
    Options options;
    app.option_defaults()->always_capture_default();
    app.add_option("--filter", options.filter, "only workloads whose name contains this");
    app.add_option("--compare", options.compare, "FILE of another framework's times (scripts/peer_pytorch.py prints them), set beside ours")
        ->type_name("FILE");
    app.add_flag("--json", options.json, "one JSON line per workload");
    app.add_flag("--list", options.list, "print the names and stop");
    app.add_flag("--profile", options.profile, "split each workload's time by kernel family instead");
    app.add_option("--threads", options.threads, "threads")->check(CLI::Range(1, 1024));
    app.add_option("--repeat", options.repeat, "bursts per workload")->check(CLI::Range(1, 1000));
    lamina::cli::add_machine(app, options.machine, "Machine");
    if (!lamina::cli::parse(app, argc, argv)) return 0;
    options.device = lamina::cli::choose_device("bench", options.machine);
    return run(options);
  });
}
