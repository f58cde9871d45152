// What a hurried user and a hard world do to the programs: closed streams, lost files, changed minds.

#include <algorithm>

#include <nlohmann/json.hpp>

#include "apps/process.h"
#include "train/small_run.h"

using namespace lamina;
namespace fs = std::filesystem;
using support::Ended;
using support::get;
using support::TempDir;

namespace {

constexpr const char* cell = "batch-n16-s1";

Ended run(const fs::path& out, const std::vector<std::string>& more, const std::function<void()>& prepare = {}) {
  std::vector<std::string> options{"--norms", "batch", "--batch-sizes", "16",    "--hidden",  "8,6",
                                   "--limit", "100",   "--no-figure",   "--out", out.string()};
  options.insert(options.end(), more.begin(), more.end());
  return support::run("mnist_batchsize", options, prepare);
}

void check_refused(const Ended& ended, const std::string& text) {
  INFO(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.out.empty());
  CHECK(std::count(ended.err.begin(), ended.err.end(), '\n') == 1);
  CHECK_THAT(ended.err, contains(text));
}

}  // namespace

TEST_CASE("lines for people do not land in files when standard streams are closed", "[apps]") {
  const TempDir out;
  REQUIRE(run(out / "whole", {"--epochs", "2"}).code == 0);
  for (const std::vector<int>& closed : {std::vector<int>{2}, {1, 2}, {0, 2}, {0, 1, 2}}) {
    const fs::path folder = out / std::to_string(closed.size() * 10 + closed[0]);
    const Ended ended = run(folder, {"--epochs", "2"}, [&] {
      for (const int fd : closed) close(fd);
    });
    CHECK(ended.code == std::ranges::count(closed, 1));  // a table that nobody can see is a failure
    CHECK(test::rows(folder / cell) == test::rows(out / "whole" / cell));
    CHECK(test::same_tensors(folder / cell / "last.safetensors", out / "whole" / cell / "last.safetensors"));
    CHECK(nlohmann::json::parse(get(folder / cell / "run.json"))["status"] == "finished");
  }
}

TEST_CASE("a run whose checkpoint is lost is not begun anew over its results", "[apps]") {
  const TempDir out;
  REQUIRE(run(out.path(), {"--epochs", "1"}).code == 0);
  fs::remove(out / cell / "last.safetensors");
  const std::string csv = get(out / cell / "metrics.csv"), record = get(out / cell / "run.json");
  check_refused(run(out.path(), {"--epochs", "2", "--resume"}), "this run is finished, but its last.safetensors is missing");
  CHECK(get(out / cell / "metrics.csv") == csv);
  CHECK(get(out / cell / "run.json") == record);
  CHECK(run(out.path(), {"--epochs", "1", "--resume"}).code == 0);  // nothing to do
}

TEST_CASE("more patience lets a run go on that patience had ended", "[apps]") {
  const TempDir out;
  // At this rate the weights hardly move, so the error stays what it is after the first epoch.
  const auto epochs = [&](const std::string& patience) {
    const Ended ended = run(out.path(), {"--epochs", "9", "--lr", "1e-30", "--patience", patience, "--bn-momentum", "0", "--resume", "--json"});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const size_t line = ended.out.rfind('\n', ended.out.size() - 2) + 1;
    return nlohmann::json::parse(ended.out.substr(line))["runs"][0]["epochs"].get<int>();
  };
  CHECK(epochs("2") == 3);
  CHECK(epochs("2") == 3);
  CHECK(epochs("1") == 3);
  CHECK(epochs("4") == 5);
  CHECK(epochs("0") == 9);
}

TEST_CASE("whole numbers are decimal, and lists may have spaces", "[apps]") {
  const TempDir out;
  REQUIRE(run(out.path(), {"--epochs", "01", "--seeds", "010, 2"}).code == 0);
  CHECK(fs::exists(out / "batch-n16-s10"));
  CHECK(fs::exists(out / "batch-n16-s2"));
}

TEST_CASE("plot.py says in one line what it cannot read or write", "[apps]") {
  const TempDir out;
  REQUIRE(run(out / "run", {"--epochs", "1"}).code == 0);
  const auto plot = [&](const std::vector<std::string>& options) {
    std::vector<std::string> command{"/usr/bin/python3", LAMINA_SOURCE_DIR "/scripts/plot.py"};
    command.insert(command.end(), options.begin(), options.end());
    return support::Process(command).wait();
  };
  if (support::Process({"/usr/bin/python3", "-c", "import matplotlib"}).wait().code != 0) return;  // figures are optional
  check_refused(plot({(out / "none").string()}), "no run with metrics in it");
  check_refused(plot({(out / "run").string(), "--out", (out / "run" / cell / "run.json" / "below").string()}), "Not a directory");
  fs::create_directory(out / "run/figure.svg");
  check_refused(plot({(out / "run").string()}), "Is a directory");
}

TEST_CASE("bench: wrong options in one line and code 2, lost output in code 1", "[apps]") {
  const auto refused = [](const std::vector<std::string>& options, const std::string& text) {
    const Ended ended = support::run("bench", options);
    check_refused(ended, text);
    CHECK(ended.err.starts_with("bench: "));
  };
  refused({"--threads", "0"}, "--threads");
  refused({"--repeat", "x"}, "--repeat");
  refused({"--filter", "no such workload"}, "no workload");
  refused({"stray"}, "stray");
  CHECK_THAT(support::run("bench", {"--list"}).out, contains("step/mlp-layer-n128-adam\n"));
  const Ended full = support::run("bench", {"--list"}, [] { dup2(open("/dev/full", O_WRONLY), 1); });
  CHECK(full.code == 1);
  CHECK_THAT(full.err, contains("bench: cannot write to standard output"));
}
