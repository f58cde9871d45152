// norm_table itself: what it prints, for people and machines, and how it ends.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "apps/process.h"
#include "support/catch.h"
#include "support/files.h"

using nlohmann::json;
using support::Ended;
using support::TempDir;

namespace {

json measure(std::vector<std::string> options = {}, int code = 0) {
  options.emplace_back("--json");
  const Ended ended = support::run("norm_table", options);
  INFO(ended.err);
  REQUIRE(ended.code == code);
  return json::parse(ended.out);
}

}  // namespace

TEST_CASE("norm_table: table 1 of the paper, measured") {
  // Ba, Kiros, Hinton 2016, table 1 (its text says that weight norm hides a re-scaled data set, its table that it does not: the table is right), and
  // the lines that the RMSNorm paper's copy adds. In this order: weight matrix re-scaled, re-centred, weight vector re-scaled, data set re-scaled,
  // re-centred, single case re-scaled.
  const std::map<std::string, std::array<bool, 6>> paper{{"batch", {true, false, true, true, true, false}},
                                                         {"weight", {true, false, true, false, false, false}},
                                                         {"layer", {true, true, false, true, false, true}},
                                                         {"rms", {true, false, false, true, false, true}},
                                                         {"prms:0.25", {true, false, false, true, false, true}}};
  const std::array<std::string, 6> changes{"weight_matrix_rescale", "weight_matrix_recentre", "weight_vector_rescale",
                                           "data_set_rescale",      "data_set_recentre",      "single_case_rescale"};
  const auto seed = GENERATE(as<std::string>(), "1", "2", "3");
  const json result = measure({"--seed", seed});
  CHECK(result["agrees"] == true);
  CHECK(result["invariance"].size() == 60);
  int of_the_paper = 0;
  for (const json& cell : result["invariance"]) {
    INFO(cell.dump());
    CHECK(cell["agrees"] == true);
    CHECK(cell["measured"] == cell["expected"]);
    const double deviation = cell["deviation"];
    CHECK((cell["measured"] == true ? deviation < 1e-13 : deviation > 1e-2));  // rounding of f64, or plain to see
    const auto row = paper.find(cell["norm"]);
    if (row == paper.end()) continue;
    ++of_the_paper;
    const auto column = std::find(changes.begin(), changes.end(), cell["change"].get<std::string>()) - changes.begin();
    REQUIRE(column < 6);
    CHECK(cell["measured"] == row->second[static_cast<size_t>(column)]);
  }
  CHECK(of_the_paper == 30);
}

TEST_CASE("norm_table: weights that grow slow their own learning") {
  const json result = measure();
  std::map<std::string, int> hidden;
  for (const json& row : result["implicit_learning_rate"]) {
    INFO(row.dump());
    CHECK(row["agrees"] == true);
    const double scale = row["scale"], gradient = row["gradient_ratio"], turn = row["turn_ratio"];
    if (row["hidden"] == true) {
      ++hidden[row["norm"]];
      CHECK(std::abs(gradient * scale - 1) < 1e-12);     // rounding of f64
      CHECK(std::abs(turn * scale * scale - 1) < 1e-6);  // the angle is small, but no tangent
      CHECK(row["deviation"].get<double>() < 1e-13);
    } else {
      CHECK(std::abs(gradient * scale - 1) > 1e-2);
      CHECK(row["deviation"].get<double>() > 1e-2);
    }
  }
  for (const char* norm : {"layer", "batch", "weight", "rms", "prms:0.25", "group:4", "instance", "weight+meanbatch"}) CHECK(hidden[norm] == 3);
  CHECK(hidden.size() == 8);
}

TEST_CASE("norm_table: for people") {
  const Ended ended = support::run("norm_table", {});
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, contains("Every cell agrees.") && !contains("!!"));
  CHECK_THAT(ended.out, contains("\nlayer ") && contains("\nweight+meanbatch ") && contains("RMSNorm paper"));
  CHECK_THAT(ended.out, contains("(yes)") && contains("(no)"));
}

TEST_CASE("norm_table: an eps that is not small does not pass") {
  const json result = measure({"--eps", "1e-5"}, 1);
  CHECK(result["agrees"] == false);
  for (const json& cell : result["invariance"]) {
    INFO(cell.dump());
    // Weight norm has no eps, and shifts that are taken off are taken off before the division.
    if (cell["norm"] == "weight") CHECK(cell["agrees"] == true);
    if (cell["norm"] == "layer" && cell["change"] == "weight_matrix_recentre") CHECK(cell["agrees"] == true);
    if (cell["norm"] == "layer" && cell["change"] == "data_set_rescale") CHECK(cell["agrees"] == false);
  }
  const Ended ended = support::run("norm_table", {"--eps", "1e-5"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.out, contains("!!") && contains("do not agree"));
}

TEST_CASE("norm_table: every factor that is allowed") {
  for (const char* factor : {"0.001", "0.9", "1.1", "1000"}) {
    INFO(factor);
    measure({"--factor", factor}, 0);
  }
}

TEST_CASE("norm_table: bad usage is one line") {
  const auto [options, text] = GENERATE(table<std::vector<std::string>, std::string>({
      {{"--eps", "-1"}, "--eps: expected a number from 0 to 1, got -1"},
      {{"--eps", "nan"}, "--eps"},
      {{"--eps", "1e300"}, "--eps: expected a number from 0 to 1, got 1e300"},
      {{"--factor", "1.05"}, "--factor: expected a value at least 0.1 from 1, got 1.05"},
      {{"--factor", "0"}, "--factor"},
      {{"--seed", "-3"}, "--seed"},
      {{"--out", "/dev/null/x"}, "--out: cannot make the folder"},
      {{"--what"}, "--what"},
  }));
  const Ended ended = support::run("norm_table", options);
  CHECK(ended.code == 2);
  CHECK(ended.out.empty());
  CHECK(ended.err.rfind("norm_table: ", 0) == 0);
  CHECK_THAT(ended.err, contains(text));
  CHECK(std::count(ended.err.begin(), ended.err.end(), '\n') == 1);
}

TEST_CASE("norm_table: the heat map, or why there is none") {
  const TempDir dir;
  const Ended ended = support::run("norm_table", {"--out", (dir.path() / "new").string(), "--json"});
  CHECK(ended.code == 0);
  CHECK(json::parse(support::get(dir.path() / "new/norm_table.json")) == json::parse(ended.out));
  const bool drawn = std::filesystem::exists(dir.path() / "new/norm_table.svg") && std::filesystem::exists(dir.path() / "new/norm_table.png");
  CHECK((drawn ? ended.err.empty() : ended.err.find("norm_table: no figure: ") == 0));
}
