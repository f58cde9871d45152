#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>

#include "apps/process.h"
#include "support/catch.h"
#include "support/files.h"

using support::run;

namespace {

// On a busy machine bench leaves the ratio out and ends with 1; the tests run on any machine.
void check_row(const nlohmann::json& row, int code) {
  for (const char* key : {"us", "floor_us"}) {
    INFO(key);
    CHECK(row.at(key).get<double>() > 0);
  }
  CHECK(row.at("floor_us").get<double>() == Approx(row.at("flop_us").get<double>() + row.at("move_us").get<double>()));
  CHECK(code == (row.at("busy").get<bool>() ? 1 : 0));
  if (row.at("busy").get<bool>())
    CHECK(row.at("ratio").is_null());
  else
    CHECK(row.at("ratio").get<double>() == Approx(row.at("us").get<double>() / row.at("floor_us").get<double>()));
}

}  // namespace

TEST_CASE("bench: one JSON line per workload, the ratio being time over floor", "[apps]") {
  const auto ended = run("bench", {"--filter", "mlp-layer-n4-sgd", "--json", "--repeat", "1"});
  const auto row = nlohmann::json::parse(ended.out);
  CHECK(row.at("name") == "step/mlp-layer-n4-sgd");
  check_row(row, ended.code);
}

TEST_CASE("bench: what measures the graph alone has a time and no floor", "[apps]") {
  const auto ended = run("bench", {"--filter", "graph/mlp-layer", "--json", "--repeat", "1"});
  CHECK(ended.code == 0);
  const auto row = nlohmann::json::parse(ended.out);
  CHECK(row.at("us").get<double>() > 0);
  CHECK(row.at("ratio").is_null());
  CHECK_FALSE(row.at("busy").get<bool>());
  CHECK_THAT(run("bench", {"--filter", "graph/mlp-layer", "--repeat", "1"}).out, contains("0.0       -\n"));
}

TEST_CASE("bench: --compare sets the peer's times beside ours, and names what is slower", "[apps]") {
  const support::TempDir dir;
  const auto file = [&](const std::string& text) {
    std::ofstream(dir / "peer.jsonl") << text;
    return (dir / "peer.jsonl").string();
  };
  const std::string fast = file(R"({"name": "op/layer_norm-128x1000", "us": 1e-3, "peer": "torch 9"}
{"name": "op/unknown", "us": 1, "peer": "torch 9"})");
  const auto ended = run("bench", {"--compare", fast, "--repeat", "1"});
  CHECK_THAT(ended.out, contains("peer: torch 9"));
  if (ended.code == 0) CHECK_THAT(ended.out, contains("1 workloads judged, slower than the peer: op/layer_norm-128x1000"));
  CHECK_THAT(ended.out, !contains("unknown"));

  const std::string slow = file(R"({"name": "op/layer_norm-128x1000", "us": 1e9, "peer": "torch 9"})");
  const auto quick = run("bench", {"--compare", slow, "--repeat", "1"});
  if (quick.code == 0) CHECK_THAT(quick.out, contains("1 workloads judged, none slower than the peer"));
  CHECK_THAT(run("bench", {"--compare", slow, "--list"}).out, !contains("judged"));
  const auto json = run("bench", {"--compare", slow, "--repeat", "1", "--json"});
  const auto row = nlohmann::json::parse(json.out);
  CHECK(row.at("peer_us") == 1e9);
  check_row(row, json.code);

  const auto refused = [](const std::string& path, const std::string& text) {
    const auto answer = run("bench", {"--compare", path});
    CHECK(answer.code == 2);
    CHECK(answer.out.empty());
    CHECK_THAT(answer.err, contains(text));
  };
  refused((dir / "absent").string(), "--compare: cannot read");
  refused(file("{\"name\": \"a\", \"us\": 1}\nus 5\n"), "line 2: expected {\"name\"");
  refused(file(R"({"name": "a", "us": 0})"), "line 1: expected");
  refused(file(""), "holds no rows");
  refused(file(R"({"name": "op/unknown", "us": 1})"), "no workload's name contains ''");
}

TEST_CASE("bench: --profile splits a step by kernel family, and the parts add up", "[apps]") {
  const auto ended = run("bench", {"--filter", "mlp-layer-n4-adam", "--profile", "--json", "--repeat", "1"});
  CHECK(ended.code == 0);
  const auto row = nlohmann::json::parse(ended.out);
  double sum = 0;
  for (const auto& [family, us] : row.at("parts").items()) sum += us.get<double>();
  CHECK(sum == Approx(row.at("us").get<double>()));
  for (const char* family : {"gemm", "norm", "elementwise", "optimizer", "rest"}) {
    INFO(family);
    CHECK(row.at("parts").at(family).get<double>() > 0);
  }
  CHECK_FALSE(row.at("parts").contains("random"));
  CHECK_THAT(run("bench", {"--filter", "mlp-layer-n4-adam", "--profile", "--repeat", "1"}).out, contains(" calls"));
}

TEST_CASE("bench: workloads are those that the PyTorch script makes too, and some that it lacks", "[apps]") {
  std::ostringstream text;
  text << std::ifstream(LAMINA_SOURCE_DIR "/scripts/peer_pytorch.py").rdbuf();
  const std::string peer = text.str();
  std::istringstream names(run("bench", {"--list"}).out);
  int shared = 0;
  for (std::string name; std::getline(names, name);) {
    INFO(name);
    const auto names_one_of = [&](std::initializer_list<const char*> parts) {
      return std::ranges::any_of(parts, [&](const char* part) { return name.find(part) != std::string::npos; });
    };
    if (names_one_of({"forward/", "rms_norm", "weight_norm", "small_op", "-512x64", "graph/"})) continue;
    ++shared;
    // The script composes some names from parts: "step/mlp-{n}-n{b}-{o}", "op/layer_norm-{r}x{c}".
    CHECK((names_one_of({"step/mlp-", "step/lstm-", "step/ln-lstm-", "op/layer_norm-"}) || peer.find('"' + name + '"') != std::string::npos));
  }
  CHECK(shared == 28);
}
