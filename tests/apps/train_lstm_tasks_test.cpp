// The tasks of train_lstm other than text, and its options.

#include <cmath>

#include <nlohmann/json.hpp>

#include <lamina/core/random.h>
#include <lamina/io/safetensors.h>

#include "apps/process.h"
#include "apps/program_checks.h"
#include "train/small_run.h"

using namespace lamina;
using nlohmann::json;
using support::Ended;
using support::results;
namespace fs = std::filesystem;
using support::get;
using support::put;
using support::TempDir;

namespace {

Ended run(const std::vector<std::string>& options) { return support::run("train_lstm", options); }

void check_refused(const Ended& ended, const std::string& text) { support::check_refused("train_lstm", ended, text); }

// Sequences of 2 to 8 steps of which the sign of the first number is a class, and the sum of all a number.
std::string table(int64_t count, uint64_t seed, bool targets = true) {
  Rng rng(seed);
  std::string csv = targets ? "sequence,x,flag,label,sum\n" : "flag,sequence,x\n";
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = 2 + rng.below(7);
    double sum = 0, first = 0;
    for (int64_t t = 0; t < length; ++t) {
      const double x = rng.uniform() * 20 - 10;
      sum += x;
      if (t == 0) first = x;
      const std::string id = "s" + std::to_string(i), number = std::to_string(x), flag = t == 0 ? "1" : "0";
      if (!targets)
        csv += flag + "," + id + "," + number + "\n";
      else if (t + 1 < length)
        csv += id + "," + number + "," + flag + ",,\n";
      else
        csv += id + "," + number + "," + flag + "," + (first > 0 ? "up" : "\"down, or not\"") + "," + std::to_string(sum) + "\n";
    }
  }
  return csv;
}

}  // namespace

TEST_CASE("your own sequences: classes, with --eval and --predict", "[apps][lstm]") {
  const TempDir work;
  put(work / "train.csv", table(400, 1));
  put(work / "new.csv", table(60, 2, false));
  put(work / "labelled.csv", table(60, 2));
  const std::string out = (work / "run").string();
  const Ended trained = run({"--task",       "csv",      (work / "train.csv").string(),
                             "--classify",   "label",    "--ignore",
                             "sum",          "--hidden", "16",
                             "--batch-size", "20",       "--lr",
                             "0.02",         "--epochs", "20",
                             "--validation", "0.2",      "--norm",
                             "layer",        "--out",    out,
                             "--json"});
  const json r = results(trained)["runs"][0];
  CHECK(r["steps"] == 20 * 16);
  CHECK(r["best_validation_error"] < 0.1);
  CHECK_THAT(trained.err, contains("400 sequences of 2 to 8 steps of 2 numbers, of which 80 validate"));

  fs::copy(work / "run/best.safetensors", work / "model.safetensors");
  const std::string model = (work / "model.safetensors").string();
  const json scores = results(run({"--eval", model, (work / "labelled.csv").string(), "--json"}))["csv"];
  CHECK(scores["count"] == 60);
  CHECK(scores["error"] < 0.15);
  const Ended told = run({"--predict", (work / "new.csv").string(), "--checkpoint", model});
  INFO(told.err);
  REQUIRE(told.code == 0);
  CHECK(told.out.starts_with("sequence,label,probability\ns0,"));
  CHECK(std::count(told.out.begin(), told.out.end(), '\n') == 61);
  CHECK((contains("\"down, or not\",0.") && contains(",up,0.")).match(told.out));
  check_refused(run({"--predict", (work / "none.csv").string(), "--checkpoint", model}), "none.csv");
  put(work / "bad.csv", "sequence,x,flag\na,1,0\na,nan,0\n");
  check_refused(run({"--predict", (work / "bad.csv").string(), "--checkpoint", model}),
                "bad.csv, line 3: column 'x': expected a finite number, got 'nan'");
  put(work / "bad.csv", "sequence,x,flag,z\na,1,0,1\n");
  check_refused(run({"--predict", (work / "bad.csv").string(), "--checkpoint", model}), "column 'z' is none of the model's inputs: x, flag");
  check_refused(run({"--sample", "5", "--checkpoint", model}), "is a model of csv, not of text");
}

TEST_CASE("your own sequences: numbers in their own units", "[apps][lstm]") {
  const TempDir work;
  Rng rng(3);
  std::string csv = "id,x,y\n";  // y: 100 + 50 times the first x
  for (int64_t i = 0; i < 300; ++i) {
    const double first = rng.uniform();
    csv += std::to_string(i) + "," + std::to_string(first) + ",\n" + std::to_string(i) + ",0.5," + std::to_string(100 + 50 * first) + "\n";
  }
  put(work / "train.csv", csv);
  const std::string out = (work / "run").string();
  const Ended trained = run({"--task",
                             "csv",
                             (work / "train.csv").string(),
                             "--id",
                             "id",
                             "--regress",
                             "y",
                             "--hidden",
                             "16",
                             "--batch-size",
                             "30",
                             "--lr",
                             "0.02",
                             "--epochs",
                             "40",
                             "--cell",
                             "gru",
                             "--bidirectional",
                             "--out",
                             out,
                             "--json"});
  CHECK(results(trained)["runs"][0]["best_validation_mse"] < 0.02);  // 1 would be the variance
  put(work / "new.csv", "id,x\na,0.25\na,0.5\nb,0.75\nb,0.5\n");
  const Ended told = run({"--predict", (work / "new.csv").string(), "--out", out});
  REQUIRE(told.code == 0);
  REQUIRE(told.out.starts_with("id,y\na,"));
  const double a = std::stod(told.out.substr(told.out.find("\na,") + 3)), b = std::stod(told.out.substr(told.out.find("\nb,") + 3));
  CHECK(std::abs(a - 112.5) < 4);
  CHECK(std::abs(b - 137.5) < 4);
}

TEST_CASE("bad tables are refused with line numbers before anything is written", "[apps][lstm]") {
  const TempDir work;
  const auto refused = [&](const std::string& csv, const std::string& text, const std::vector<std::string>& more = {"--classify", "label"}) {
    put(work / "data.csv", csv);
    std::vector<std::string> options{"--task", "csv", (work / "data.csv").string(), "--out", (work / "run").string()};
    options.insert(options.end(), more.begin(), more.end());
    check_refused(run(options), text);
    CHECK_FALSE(fs::exists(work / "run"));
  };
  const std::string head = "sequence,x,label\n";
  refused(head + "a,NaN,u\nb,1,v\n", "data.csv, line 2: column 'x': expected a finite number, got 'NaN'");
  refused(head + "a,1,u\na\n", "line 3: expected 3 fields");
  refused(head, "line 1: expected rows below the header, got none");
  refused("", "line 1: expected a header");
  refused("sequence,x,y\na,1,2\n", "expected at least 2 sequences, one of them to validate, got 1", {"--regress", "y"});
  refused(head + "a,1,u\nb,1,v\n", "expected either --classify COLUMN or --regress COLUMNS", {});
  refused(head + "a,1,u\nb,1,v\n", "expected either --classify COLUMN or --regress COLUMNS", {"--classify", "label", "--regress", "x"});
  refused(head + "a,1,u\na,1,u\nb,1,v\nc,1,v\n",
          "batch keeps statistics for each step over a batch, and needs sequences of one length, got 1 to 2 steps",
          {"--classify", "label", "--norm", "batch"});
  refused(head + "a,1,u\nb,1,v\n", "batch needs at least 2 sequences to train on, got 1", {"--classify", "label", "--norm", "batch"});
}

TEST_CASE("images by rows and by pixels learn, evaluate and predict from the checkpoint alone", "[apps][lstm]") {
  const TempDir work;
  const std::string out = (work / "rows").string();
  const Ended rows =
      run({"--limit", "2000", "--epochs", "3", "--hidden", "24", "--batch-size", "50", "--lr", "0.01", "--norm", "layer", "--out", out, "--json"});
  const json r = results(rows)["runs"][0];
  CHECK(r["steps"] == 120);
  CHECK(r["test_error"] < 0.4);
  CHECK(r["samples_per_second"] > 0);
  const json scores = results(run({"--eval", out + "/last.safetensors", "--json"}));
  CHECK(scores["test"]["error"] == r["test_error"]);
  CHECK(scores["validation"]["count"] == 5000);
  std::string images = support::big_endian(2051) + support::big_endian(2) + support::big_endian(28) + support::big_endian(28);
  images += std::string(2 * 784, '\0');
  put(work / "images", images);
  const Ended told = run({"--predict", (work / "images").string(), "--out", out});
  CHECK(told.code == 0);
  CHECK(told.out.starts_with("image,class,probability\n0,"));
  CHECK(std::count(told.out.begin(), told.out.end(), '\n') == 3);

  const auto pixels = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> options{
        "--task", "pixels", "--limit", "20", "--steps", "2", "--hidden", "4", "--batch-size", "10", "--out", (work / name).string(), "--json"};
    options.insert(options.end(), more.begin(), more.end());
    return results(run(options))["runs"][0];
  };
  const json in_order = pixels("a", {"--norm", "batch", "--state-noise", "0.1"});
  CHECK(in_order["test_nll"] > 0);
  const json permuted = pixels("b", {"--permute", "7", "--cell", "gru"}), other = pixels("c", {"--permute", "8", "--cell", "gru"});
  CHECK(permuted["test_nll"] != other["test_nll"]);
  CHECK(results(run({"--eval", (work / "b/best.safetensors").string(), "--json"}))["test"]["count"] == 10000);
}

TEST_CASE("the copying problem is trained; the adding problem is learned", "[apps][lstm]") {
  const TempDir work;
  const json copy = results(run({"--task", "copy", "--length", "1", "--steps", "600", "--hidden", "32", "--batch-size", "20", "--lr", "0.01", "--out",
                                 (work / "copy").string(), "--json"}))["runs"][0];
  CHECK(copy["validation_nll"] < 1.7);  // ln 8 = 2.079 is guessing
  CHECK(copy["validation_error"] < 0.75);
  const json adding = results(run({"--task", "adding", "--length", "10", "--epochs", "10", "--hidden", "24", "--batch-size", "20", "--lr", "0.01",
                                   "--out", (work / "adding").string(), "--json"}))["runs"][0];
  CHECK(adding["validation_mse"] < 0.05);  // 1/6 without memory
  CHECK(adding["sequences_per_second"] > 0);
}

TEST_CASE("wrong options are refused in one line", "[apps][lstm]") {
  const TempDir work;
  put(work / "text.txt", std::string(9000, 'x'));
  const std::string file = (work / "text.txt").string();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--norm", "foo"}, "--norm: unknown 'foo' for lstm; expected one of none, layer"},
      {{"--norm", "Layer"}, "--norm: unknown 'Layer'"},
      {{"--norm", "group:4"}, "--norm: unknown 'group:4' for lstm"},
      {{"--cell", "gru", "--norm", "layer-cell"}, "--norm: unknown 'layer-cell' for gru; expected one of none, layer"},
      {{"--norms", "none,none"}, "--norms: none is named twice"},
      {{"--norms", "none,,layer"}, "--norms: an entry of 'none,,layer' is empty"},
      {{"--hidden", "0"}, "--hidden: expected at least 1, got 0"},
      {{"--layers", "0"}, "--layers: expected at least 1, got 0"},
      {{"--batch-size", "0"}, "--batch-size: expected at least 1, got 0"},
      {{"--batch-size", "1", "--norm", "batch"}, "batch norm needs at least 2 sequences in a batch, got 1"},
      {{"--dropout", "1.5"}, "--dropout: expected a number from 0 to below 1, got 1.5"},
      {{"--task", "adding", "--length", "0"}, "--length: expected at least 1, got 0"},
      {{"--task", "adding", "--length", "1"}, "--length: expected at least 2 for adding, got 1"},
      {{"--task", "copy", "--length", "-3"}, "--length: expected at least 1, got -3"},
      {{"--task", "copy", "--length", "9223372036854775807"}, "[copy] 1000 sequences of 9223372036854775807 steps are too large"},
      {{"--task", "adding", "--length", "4611686018427387904"}, "[adding] 1000 sequences of 4611686018427387904 steps are too large"},
      {{"--task", "adding", "--hidden", "4611686018427387904"}, "hidden: expected a size <= 2147483647"},
      {{"--task", "adding", "--layers", "4611686018427387904"}, "layers: expected a number <= 10000"},
      {{"--task", "words"}, "--task"},
      {{"--task", "text"}, "expected a file: train_lstm --task text FILE"},
      {{"--task", "text", file, "--bptt", "0"}, "--bptt: expected at least 1, got 0"},
      {{"--task", "text", file, "--norm", "batch"}, "a text whose state is carried over has no start"},
      {{"--task", "text", file, "--bidirectional"}, "the other direction reads what is to be predicted"},
      {{"--task", "text", file, "--validation", "1"}, "--validation"},
      {{"--task", "text", file, "--unit", "word"}, "--unit"},
      {{"--task", "text", file, "--length", "5"}, "--length: belongs to --task adding and copy, not to text"},
      {{"--bptt", "20"}, "--bptt: belongs to --task text, not to rows"},
      {{file}, "FILE: belongs to --task text and csv, not to rows"},
      {{"--permute", "1"}, "--permute: belongs to --task pixels, not to rows"},
      {{"--task", "adding", "--classify", "x"}, "--classify: belongs to --task csv"},
      {{"--ignore", "x"}, "--ignore: belongs to --task csv, not to rows"},
      {{"--norm", "layer", "--norms", "none"}, "--norm and --norms: expected one of them, got both"},
      {{"--epochs", "1", "--steps", "1"}, "--epochs and --steps: expected one of them, got both"},
      {{"--cell", "gru", "--forget-bias", "1"}, "--forget-bias: gru has no forget gate"},
      {{"--cell", "elman"}, "--cell"},
      {{"--lr", "nan"}, "--lr: expected a number above 0, got nan"},
      {{"--clip", "-1"}, "--clip: expected at least 0, got -1"},
      {{"--init", "zero"}, "--init: "},
      {{"--schedule", "cosine"}, "--schedule: "},
      {{"--device", "tpu"}, "--device: [device] expected auto, cpu, cuda"},
      {{"--device", "cpu", "--cuda-graph"}, "--cuda-graph: needs a GPU"},
      {{"--threads", "5000"}, "--threads: expected at most 1024, got 5000"},
      {{"--batch-size", "99999"}, "--batch-size: expected at most 55000, the number of training images"},
      {{"--prompt", "x"}, "--prompt: needs --sample N"},
      {{"--temperature", "2"}, "--temperature: needs --sample N"},
      {{"--sample", "0"}, "--sample: expected at least 1, got 0"},
      {{"--sample", "5", "--temperature", "-1"}, "--temperature: expected at least 0, got -1"},
      {{"--sample", "5", "--eval", "x"}, "--eval, --predict and --sample: expected one of them"},
      {{"--sample", "5"}, "best.safetensors"},
      {{"--sample", "5", "--hidden", "12"}, "--hidden: would do nothing with --sample"},
      {{"--eval", "none.safetensors", "--batch-size", "12"}, "--batch-size: would do nothing with --eval"},
      {{"--predict", "x.csv", "--temperature", "1", "--sample", "5"}, "--eval, --predict and --sample: expected one of them"},
      {{"--predict", "x.csv", "--seed", "1"}, "--seed: would do nothing with --predict"},
      {{"--eval", "none.safetensors"}, "none.safetensors"},
      {{"--data", (work / "none").string()}, "no such directory"},
      {{"--frobnicate"}, "--frobnicate"},
      {{"one", "two"}, "two"},
  };
  for (const auto& [options, text] : cases) {
    INFO(options.front() + " " + options.back());
    std::vector<std::string> all = options;
    all.insert(all.end(), {"--out", (work / "run").string()});
    check_refused(run(all), text);
    CHECK_FALSE(fs::exists(work / "run"));
  }
}

TEST_CASE("a checkpoint whose parts do not fit together is refused, whoever wrote it", "[apps][lstm]") {
  const TempDir work;
  const std::string data = (work / "data.csv").string(), text = (work / "text.txt").string(), model = (work / "model").string();
  put(data, "sequence,x,z,y\n1,1,5,1\n2,2,5,4\n3,3,5,9\n");
  put(text, std::string(200, 'x'));
  REQUIRE(run({"--task", "csv", data, "--regress", "y", "--steps", "1", "--hidden", "2", "--out", (work / "csv").string()}).code == 0);
  REQUIRE(
      run({"--task", "text", text, "--steps", "1", "--hidden", "2", "--batch-size", "1", "--bptt", "5", "--out", (work / "text").string()}).code ==
      0);
  const auto refused = [&](const std::string& from, const std::string& name, const json& value, const std::vector<std::string>& use) {
    INFO(name + " " + value.dump());
    io::Safetensors content = io::read_safetensors(work / from / "best.safetensors");
    json recipe = json::parse(content.metadata.at("train_lstm.recipe"));
    REQUIRE(recipe.contains(name));
    recipe[name] = value;
    content.metadata["train_lstm.recipe"] = recipe.dump();
    io::write_safetensors(model, content, {.checksum = false});  // as another program would
    check_refused(run(use), "model: damaged 'train_lstm.recipe': ");
  };
  const std::vector<std::string> predict{"--predict", data, "--checkpoint", model}, eval{"--eval", model, text};
  const std::vector<std::string> sample{"--sample", "3", "--checkpoint", model};
  refused("csv", "input_mean", {1, 2, 3, 4, 5}, predict);
  refused("csv", "input_scale", json::array(), predict);
  refused("csv", "input_scale", {1, 0}, predict);
  refused("csv", "target_scale", json::array(), predict);
  refused("csv", "target_mean", {1, 2}, predict);
  refused("csv", "columns", {"x"}, predict);
  refused("csv", "classify", "z", predict);
  refused("csv", "regress", {"y", "z"}, predict);
  refused("csv", "layers", int64_t{1} << 62, predict);
  refused("csv", "task", "words", predict);
  refused("csv", "task", "rows", predict);
  refused("csv", "cell", "elman", predict);
  refused("text", "bptt", 0, eval);
  refused("text", "streams", 0, eval);
  refused("text", "vocabulary", "byte", sample);
}

TEST_CASE("a number far from those of training is refused, not told as nan", "[apps][lstm]") {
  const TempDir work;
  const std::string data = (work / "data.csv").string(), far = (work / "far.csv").string(), out = (work / "run").string();
  put(data, "sequence,x,y\n1,1e-30,1\n2,2e-30,4\n3,3e-30,9\n");
  REQUIRE(run({"--task", "csv", data, "--regress", "y", "--steps", "1", "--hidden", "2", "--out", out}).code == 0);
  put(far, "sequence,x\n1,1e30\n");
  check_refused(run({"--predict", far, "--out", out}), "far.csv: column 'x': 1e+30 is too far from the training sequences, whose mean is ");
}

TEST_CASE("what a file holds does not command the terminal in a message", "[apps][lstm]") {
  const TempDir work;
  put(work / "data.csv", std::string("sequence,x,y\n1,\x1b[2J\x7f!,1\n"));
  const Ended ended = run({"--task", "csv", (work / "data.csv").string(), "--regress", "y", "--out", (work / "run").string()});
  check_refused(ended, "line 2: column 'x': expected a number, got ' [2J !'");
}

TEST_CASE("lengths up to the largest are understood", "[apps][lstm]") {
  const TempDir work;
  const auto length = [&](const char* option, const char* value, const std::vector<std::string>& more) {
    std::vector<std::string> options{"--task",       "adding", "--length", "2",     "--hidden", "1",
                                     "--batch-size", "1",      "--lr",     "1e-30", "--out",    (work / "run").string(),
                                     "--resume",     "--json", option,     value};
    options.insert(options.end(), more.begin(), more.end());
    return results(run(options))["runs"][0]["steps"].get<int64_t>();
  };
  CHECK(length("--epochs", "1", {}) == 100);
  const int64_t longer = length("--epochs", "9223372036854775807", {"--patience", "1"});
  CHECK(longer > 100);
  CHECK(length("--steps", "9223372036854775807", {"--patience", "3"}) > longer);
}

TEST_CASE("help shows every default and the tasks; a config file is read", "[apps][lstm]") {
  const Ended help = run({"--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  for (const char* text : {"--task text input.txt", "--sample 500", "csv FILE", "--norms", "--bptt", "--state-noise", "layer-carry", "Exit codes"})
    CHECK_THAT(help.out, contains(text));
  for (const std::string value : {"rows", "lstm", "128", "0.002", "character", "sequence", "runs/train_lstm"})
    CHECK_THAT(help.out, contains("=" + value) || contains("[" + value + "]"));
  const TempDir work;
  put(work / "good.toml",
      "task = \"adding\"\nlength = 5\nhidden = 6\nsteps = 2\nnorms = [\"none\", \"layer\"]\nno-figure = true\njson = true\nforget-bias = 1.0\n");
  const json runs = results(run({"--config", (work / "good.toml").string(), "--out", (work / "run").string()}))["runs"];
  CHECK(runs.size() == 2);
  CHECK(json::parse(get(work / "run/layer/run.json"))["config"]["forget_bias"] == 1.0);
  put(work / "bad.toml", "hidden = 0\n");
  check_refused(run({"--config", (work / "bad.toml").string()}), "--hidden: expected at least 1, got 0");
  put(work / "bad.toml", "learning-rate = 1\n");
  check_refused(run({"--config", (work / "bad.toml").string()}), "--config: unknown key 'learning-rate' in the file");
  for (const char* line : {"[", "=8", "[rows]"}) {
    put(work / "bad.toml", std::string("hidden = 8\n  ") + line + "\nseed = 2\n");
    check_refused(run({"--config", (work / "bad.toml").string()}), std::string("--config: line 2: expected 'name = value', got '") + line + "'");
  }
}
