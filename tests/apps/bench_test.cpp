#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>
#include <string>

#include "apps/process.h"
#include "support/catch.h"

using support::run;

TEST_CASE("bench: one JSON line per workload, the ratio being time over floor", "[apps]") {
  const auto ended = run("bench", {"--filter", "mlp-layer-n4-sgd", "--json", "--repeat", "1"});
  REQUIRE(ended.code == 0);
  const auto row = nlohmann::json::parse(ended.out);
  CHECK(row.at("name") == "step/mlp-layer-n4-sgd");
  for (const char* key : {"us", "floor_us", "flop_us", "move_us", "ratio"}) {
    INFO(key);
    CHECK(row.at(key).get<double>() > 0);
  }
  CHECK(row.at("floor_us").get<double>() == Approx(row.at("flop_us").get<double>() + row.at("move_us").get<double>()));
  CHECK(row.at("ratio").get<double>() == Approx(row.at("us").get<double>() / row.at("floor_us").get<double>()));
}

TEST_CASE("bench: every workload is one that the PyTorch script makes too", "[apps]") {
  std::ostringstream text;
  text << std::ifstream(LAMINA_SOURCE_DIR "/scripts/peer_pytorch.py").rdbuf();
  const std::string peer = text.str();
  std::istringstream names(run("bench", {"--list"}).out);
  int count = 0;
  for (std::string name; std::getline(names, name); ++count) {
    INFO(name);
    // The script composes some names from parts: "step/mlp-{n}-n{b}-{o}", "op/layer_norm-{r}x{c}".
    const bool composed = name.starts_with("step/mlp-") || name.starts_with("op/layer_norm-");
    CHECK((composed || peer.find('"' + name + '"') != std::string::npos));
  }
  CHECK(count == 18);
}
