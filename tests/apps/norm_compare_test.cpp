// norm_compare itself, on small files of its own. What it shares with mnist_batchsize (resuming, signals, bad files) is tested there.

#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include <lamina/io/safetensors.h>

#include "apps/image_files.h"
#include "apps/process.h"
#include "support/allclose.h"
#include "support/catch.h"

using namespace lamina;
using nlohmann::json;
using support::Ended;
namespace fs = std::filesystem;
using support::get;
using support::TempDir;

namespace {

constexpr int train_count = 120;

const fs::path& data_dir() {
  static const TempDir dir;
  static const bool made = [] {
    support::put_images(dir.path(), "train", 5000 + train_count, 1);
    return true;  // test images are not asked for
  }();
  return (void)made, dir.path();
}

// Small, unless `more` says otherwise.
Ended run(const fs::path& out, const std::vector<std::string>& more) {
  std::vector<std::string> options{"--out", out.string(), "--threads", "1", "--json"};
  const auto unless_given = [&](const char* name, const char* value) {
    if (std::find(more.begin(), more.end(), name) == more.end()) options.insert(options.end(), {name, value});
  };
  unless_given("--data", data_dir().c_str());
  unless_given("--norms", "batch");
  unless_given("--batch-sizes", "16");
  unless_given("--seeds", "1");
  unless_given("--epochs", "2");
  unless_given("--width", "8");
  if (std::find(more.begin(), more.end(), "figure") == more.end()) options.emplace_back("--no-figure");
  for (const std::string& option : more)
    if (option != "figure") options.push_back(option);
  return support::run("norm_compare", options);
}

json runs(const Ended& ended) {
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return json::parse(ended.out.substr(ended.out.rfind("\n{") + 1))["runs"];
}

json config(const fs::path& folder) { return json::parse(get(folder / "run.json"))["config"]; }

Tensor parameter(const fs::path& folder, const std::string& name) {
  const io::Safetensors checkpoint = io::read_safetensors(folder / "last.safetensors");
  const Tensor* found = checkpoint.find("model." + name);
  REQUIRE(found != nullptr);
  return *found;
}

}  // namespace

TEST_CASE("norm_compare: norms, batch sizes and seeds; table, JSON and metrics agree") {
  const TempDir out;
  const Ended ended = run(out.path(), {"--norms", "none,layer,batch", "--batch-sizes", "8,32", "--seeds", "1,2", "--dropout", "0.1", "--depth", "3"});
  const json all = runs(ended);
  REQUIRE(all.size() == 12);
  for (const json& r : all) {
    INFO(r.dump());
    const fs::path folder =
        out / (r["norm"].get<std::string>() + "-n" + std::to_string(r["batch_size"].get<int>()) + "-s" + std::to_string(r["seed"].get<int>()));
    const std::string csv = get(folder / "metrics.csv");
    CHECK_THAT(csv, contains("training,error," + r["final_training_error"].dump() + "\n"));
    CHECK_THAT(csv, contains("validation,error," + r["final_validation_error"].dump() + "\n"));
    CHECK_THAT(csv, !contains("test,"));
    CHECK(r["best_validation_error"] <= r["final_validation_error"]);
    CHECK(r["final_training_error"] < 0.95);
    const json c = config(folder);
    CHECK(c["hidden"] == std::vector<int>{8, 8, 8});
    CHECK(c["dropout"] == 0.1);
    CHECK(c["weight_decay"] == 0.0);
    CHECK(c["dataset"] == "mnist");
    if (r["norm"] == "batch") CHECK(c["bn_variance"] == "biased");
    CHECK(json::parse(get(folder / "run.json"))["app"] == "norm_compare");
  }
  CHECK_THAT(ended.out, contains("training acc") && contains("best validation acc") && contains(" ± "));
  CHECK(std::count(ended.out.begin(), ended.out.end(), '%') == 18);  // six rows, three accuracies each
  // The table's first row, from its two runs.
  double mean = 0;
  for (const json& r : all)
    if (r["norm"] == "none" && r["batch_size"] == 8) mean += (1 - r["final_training_error"].get<double>()) * 50;
  char text[32];
  std::snprintf(text, sizeof text, " %.2f ± ", mean);
  CHECK_THAT(ended.out.substr(0, ended.out.find("\nlayer")), contains(text));
  CHECK_THAT(ended.err, contains("validation err ") && contains("training err "));
}

TEST_CASE("norm_compare: a preset sets what is not given") {
  const TempDir out;
  runs(run(out.path() / "course", {"--preset", "cs231n", "--epochs", "1", "--norms", "layer"}));
  const json course = config(out.path() / "course/layer-n16-s1");
  CHECK(course["hidden"] == std::vector<int>{8, 8, 8, 8, 8});  // its five, of the width that was given
  CHECK(course["init"] == "normal:0.02");
  CHECK(course["bias_init"] == "zeros");
  CHECK(course["limit"] == 1000);
  CHECK(course["epochs"] == 1);
  CHECK(course["lr"].get<double>() == Approx(std::pow(10, -3.5)));
  runs(run(out.path() / "default", {"--norms", "layer", "--lr", "0.01"}));
  const json classical = config(out.path() / "default/layer-n16-s1");
  CHECK(classical["init"] == "pytorch");
  CHECK(classical["lr"] == 0.01);
  // The order of options does not matter, nor does a file for them.
  const fs::path file = support::put(out / "options.toml", "preset = \"cs231n\"\nbias-init = \"pytorch\"\n");
  runs(run(out.path() / "file", {"--config", file.string(), "--norms", "layer"}));
  const json from_file = config(out.path() / "file/layer-n16-s1");
  CHECK(from_file["init"] == "normal:0.02");
  CHECK(from_file["bias_init"] == "pytorch");
  const Ended help = support::run("norm_compare", {"--help"});
  CHECK(help.code == 0);
  CHECK_THAT(help.out, contains("classical or cs231n") && contains("--depth") && contains("mnist or fashion or cifar10") && !contains("--hidden"));
  const Ended of_preset = support::run("norm_compare", {"--preset", "cs231n", "--help"});
  CHECK(of_preset.code == 0);
  CHECK_THAT(of_preset.out, contains("=cs231n\n") && contains("--depth N=5 ") && contains("--batch-sizes LIST=[5,10,50]"));
}

TEST_CASE("norm_compare: weight decay spares gains and biases") {
  const TempDir out;
  // lr times decay is 0.1, so in the 15 steps of an epoch what decays loses four fifths.
  const auto train = [&](const std::string& name, const std::string& norm, const std::string& decay) {
    runs(run(out / name, {"--norms", norm, "--batch-sizes", "8", "--epochs", "1", "--depth", "1", "--optimizer", "sgd", "--lr", "0.001",
                          "--weight-decay", decay}));
    return out / name / (norm + "-n8-s1");
  };
  const fs::path plain = train("plain", "batch", "0"), decayed = train("decayed", "batch", "100");
  CHECK(test::norm_of(parameter(decayed, "0.weight")) < 0.3 * test::norm_of(parameter(plain, "0.weight")));
  CHECK(test::norm_of(parameter(decayed, "3.weight")) < 0.3 * test::norm_of(parameter(plain, "3.weight")));
  // The gradient of a bias in front of batch norm is 0 but for rounding: without decay nothing moves it.
  CHECK(test::max_difference(parameter(decayed, "0.bias"), parameter(plain, "0.bias")) < test::f32_sum);
  CHECK(test::norm_of(parameter(decayed, "1.weight")) == Approx(test::norm_of(parameter(plain, "1.weight"))).epsilon(0.05));
  const fs::path weight_plain = train("weight_plain", "weight", "0"), weight_decayed = train("weight_decayed", "weight", "100");
  CHECK(test::norm_of(parameter(weight_decayed, "0.weight_v")) < 0.3 * test::norm_of(parameter(weight_plain, "0.weight_v")));
  CHECK(test::norm_of(parameter(weight_decayed, "0.weight_g")) == Approx(test::norm_of(parameter(weight_plain, "0.weight_g"))).epsilon(0.05));
}

TEST_CASE("norm_compare: CIFAR-10, where its files are") {
  const TempDir dir;
  for (int file = 1; file <= 5; ++file) {
    std::string bytes;
    for (int i = 0; i < 1006; ++i) {
      const int label = i % 10;
      bytes += static_cast<char>(label);
      bytes.append(3072, static_cast<char>(20 * label + 10));
    }
    support::put(dir / ("data_batch_" + std::to_string(file) + ".bin"), bytes);
  }
  const TempDir out;
  const json r = runs(run(out.path(), {"--dataset", "cifar10", "--data", dir.path().string(), "--norms", "layer", "--batch-sizes", "5"}));
  CHECK(r.size() == 1);
  CHECK(parameter(out / "layer-n5-s1", "0.weight").shape() == Shape{8, 3072});
  const Ended without =
      support::run("norm_compare", {"--dataset", "cifar10", "--out", (out / "no").string()}, [&] { setenv("LAMINA_DATA", dir.path().c_str(), 1); });
  CHECK(without.code == 2);
  CHECK_THAT(without.err, contains("scripts/fetch_data.sh cifar10 gets it"));
}

TEST_CASE("norm_compare: a file in a run's place is found before the first run") {
  const TempDir out;
  support::put(out / "layer-n16-s1", "no folder");
  const Ended ended = run(out.path(), {"--norms", "none,layer"});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, contains("layer-n16-s1: expected a folder for the run, found a file"));
  CHECK(!fs::exists(out / "none-n16-s1"));
}

TEST_CASE("norm_compare: bad usage is one line") {
  const auto [options, text] = GENERATE(table<std::vector<std::string>, std::string>({
      {{"--preset", "paper"}, "--preset"},
      {{"--depth", "0"}, "--depth: expected at least 1, got 0"},
      {{"--depth", "1000000000000"}, "--depth: expected at most 10000, got 1000000000000"},
      {{"--dropout", "1"}, "--dropout"},
      {{"--weight-decay", "-1"}, "--weight-decay: expected at least 0"},
      {{"--bias-init", "warm"}, "--bias-init: "},
      {{"--norms", "group:3"}, "does not divide 8 features"},
      {{"--dataset", "imagenet"}, "--dataset"},
      {{"--hidden", "10"}, "--hidden"},
  }));
  const TempDir out;
  const Ended ended = run(out.path(), options);
  INFO(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.out.empty());
  CHECK(ended.err.rfind("norm_compare: ", 0) == 0);
  CHECK_THAT(ended.err, contains(text));
  CHECK(std::count(ended.err.begin(), ended.err.end(), '\n') == 1);
}

TEST_CASE("norm_compare: the figure, or why there is none") {
  const TempDir out;
  const Ended ended = run(out.path(), {"--norms", "layer,batch", "--batch-sizes", "8,32", "figure"});
  CHECK(ended.code == 0);
  if (ended.err.find("norm_compare: no figure: ") != std::string::npos) return;
  CHECK(fs::file_size(out / "figure.svg") > 10000);
  CHECK(fs::exists(out / "figure.png"));
  CHECK_THAT(ended.out, contains("figure.svg"));
}
