// train_lstm itself, on small files of its own.

#include <cmath>
#include <cstring>
#include <sstream>

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include <lamina/core/random.h>

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

const std::vector<std::string> words{"the ", "cat ", "sat ", "on ", "a ", "mat.\n"};

// Words drawn evenly; ln 6 nats for 3.83 characters on average, so no model is better than 0.467 nats per character.
std::string corpus(int64_t count) {
  Rng rng(4);
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += words[static_cast<size_t>(rng.below(6))];
  return text;
}

Ended run(const std::vector<std::string>& options, const std::function<void()>& prepare = {}) { return support::run("train_lstm", options, prepare); }

// A small run on a text of `count` words.
std::vector<std::string> small(const fs::path& out, const std::vector<std::string>& more = {}, int64_t count = 400) {
  const fs::path file = out.parent_path() / ("corpus" + std::to_string(count) + ".txt");
  if (!fs::exists(file)) put(file, corpus(count));
  std::vector<std::string> options{"--task", "text", file.string(), "--out", out.string(), "--embedding", "8"};
  const auto has = [&](const char* name) { return std::find(more.begin(), more.end(), name) != more.end(); };
  if (!has("--hidden")) options.insert(options.end(), {"--hidden", "16"});
  if (!has("--batch-size")) options.insert(options.end(), {"--batch-size", "4"});
  if (!has("--bptt")) options.insert(options.end(), {"--bptt", "20"});
  if (!has("--epochs") && !has("--steps")) options.insert(options.end(), {"--epochs", "2"});
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

void check_refused(const Ended& ended, const std::string& text) { support::check_refused("train_lstm", ended, text); }

}  // namespace

TEST_CASE("a text file becomes a model that writes its words", "[apps][lstm]") {
  const TempDir work;
  const Ended trained = run(small(work / "run", {"--steps", "400", "--lr", "0.02", "--hidden", "32", "--batch-size", "8", "--json"}, 3000));
  const json r = results(trained)["runs"][0];
  CHECK(r["steps"] == 400);
  CHECK(r["validation_nll"] < 0.54);  // 0.467 is perfect
  CHECK(r["validation_bpc"] < 0.54 / std::log(2.0));
  CHECK(r["best_validation_nll"] <= r["validation_nll"]);
  CHECK(r["characters_per_second"] > 0);
  CHECK_THAT(trained.err, contains("characters of 12 kinds") && contains("bits per character, perplexity ") && contains(" characters/s"));
  CHECK_THAT(trained.out, contains(LAMINA_BIN_DIR "/train_lstm --sample 500 --out " + (work / "run").string()));
  CHECK((trained.out + trained.err).find_first_of("\r\x1b") == std::string::npos);  // G05
  const json record = json::parse(get(work / "run/run.json"));
  CHECK(record["status"] == "finished");
  CHECK(record["config"]["bptt"] == 20);
  CHECK_FALSE(record["config"].contains("length"));

  // The checkpoint alone is enough, wherever it lies.
  fs::copy(work / "run/best.safetensors", work / "model.safetensors");
  fs::remove_all(work / "run");
  const Ended sampled = run({"--sample", "600", "--checkpoint", (work / "model.safetensors").string(), "--prompt", "the "});
  INFO(sampled.err);
  REQUIRE(sampled.code == 0);
  CHECK(sampled.out.size() == 4 + 600 + 1);
  CHECK(sampled.out.starts_with("the "));
  std::istringstream text(sampled.out);
  int known = 0, all = 0;
  for (std::string word; text >> word; ++all)
    known += std::ranges::any_of(words, [&](const std::string& w) { return w.substr(0, w.size() - 1) == word; });
  CHECK(known > all * 8 / 10);
  const std::vector<std::string> again{"--sample", "50", "--checkpoint", (work / "model.safetensors").string()};
  CHECK(run(again).out == run(again).out);
  std::vector<std::string> other = again, coldest = again;
  other.insert(other.end(), {"--seed", "2"});
  coldest.insert(coldest.end(), {"--temperature", "0", "--seed", "2"});
  CHECK(run(other).out != run(again).out);
  std::vector<std::string> cold = again;
  cold.insert(cold.end(), {"--temperature", "0"});
  CHECK(run(cold).out == run(coldest).out);
  check_refused(run({"--sample", "5", "--checkpoint", (work / "model.safetensors").string(), "--prompt", "dog"}),
                "--prompt: character 'd' (U+0064) at position 0 is not in the vocabulary");  // F08

  put(work / "other.txt", corpus(50) + "the cat ");
  const Ended judged = run({"--eval", (work / "model.safetensors").string(), (work / "other.txt").string(), "--json"});
  const json scores = results(judged)["text"];
  CHECK(scores["count"] == static_cast<int64_t>(corpus(50).size()) + 8 - 1);
  CHECK(scores["nll"] < 0.8);
  check_refused(run({"--eval", (work / "model.safetensors").string()}), "a model of text needs a file");
  put(work / "odd.txt", "zebra");
  check_refused(run({"--eval", (work / "model.safetensors").string(), (work / "odd.txt").string()}), "odd.txt: character 'z' (U+007A) at position 0");
  check_refused(run({"--predict", (work / "odd.txt").string(), "--checkpoint", (work / "model.safetensors").string()}),
                "is of text (see --sample and --eval)");
}

TEST_CASE("any file is bytes; text is UTF-8, with LF for CR LF (F07)", "[apps][lstm]") {
  const TempDir work;
  std::string binary;
  Rng rng(1);
  for (int i = 0; i < 3000; ++i) binary += static_cast<char>(rng.below(256));
  put(work / "binary", binary);
  const auto options = [&](const char* file, const char* unit, const char* out) {
    return std::vector<std::string>{"--task",   "text", (work / file).string(), "--unit", unit,     "--out", (work / out).string(),
                                    "--hidden", "8",    "--batch-size",         "4",      "--bptt", "20",    "--steps",
                                    "3"};
  };
  CHECK(run(options("binary", "byte", "bytes")).code == 0);
  check_refused(run(options("binary", "character", "no")), "is not UTF-8; --unit byte reads any file");
  CHECK(run({"--sample", "20", "--prompt", "\xC3\xA9\x80", "--out", (work / "bytes").string()}).out.size() == 3 + 20 + 1);

  std::string windows;
  for (int i = 0; i < 200; ++i) windows += "caf\xC3\xA9 au lait\r\n";
  put(work / "windows.txt", "\xEF\xBB\xBF" + windows);
  const Ended trained = run(options("windows.txt", "character", "characters"));
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.err, contains("2,600 characters of 10 kinds"));  // a c f e-acute u l i t, space and LF
  const Ended sampled = run({"--sample", "300", "--temperature", "5", "--out", (work / "characters").string()});
  CHECK(sampled.code == 0);
  CHECK(sampled.out.find('\r') == std::string::npos);
  CHECK(sampled.out.find("\xC3\xA9") != std::string::npos);
}

TEST_CASE("texts that are too short are refused with what is needed (F09)", "[apps][lstm]") {
  const TempDir work;
  const auto refused = [&](const std::string& text, const std::string& message) {
    put(work / "short.txt", text);
    check_refused(run({"--task", "text", (work / "short.txt").string(), "--batch-size", "50", "--bptt", "50", "--out", (work / "run").string()}),
                  message);
    CHECK_FALSE(fs::exists(work / "run"));
  };
  refused("", "short.txt: the file is empty");
  refused("x", "expected at least 2501 symbols (a batch of 50 streams of 50 steps, and the last target), got 0 of its 1");
  refused(std::string(100, 'x'), "got 95 of its 100 (the others validate); a smaller --batch-size or --bptt needs less");
  refused(std::string(2631, 'x'), "got 2499 of its 2631");
  put(work / "exact.txt", std::string(2633, 'x'));  // 132 validate, 2501 train: one batch
  const Ended exact = run({"--task", "text", (work / "exact.txt").string(), "--batch-size", "50", "--bptt", "50", "--hidden", "4", "--epochs", "3",
                           "--json", "--out", (work / "run").string()});
  CHECK(results(exact)["runs"][0]["steps"] == 3);
  check_refused(run({"--task", "text", (work / "none.txt").string()}), "none.txt");
}

TEST_CASE("every cell trains with every norm that it has, on one step's notice (G08)", "[apps][lstm]") {
  const TempDir work;
  for (const auto& [cell, norms] : {std::pair{"lstm", "none,layer,layer-cell,layer-carry,layer-gates,batch,rms,weight"},
                                    {"gru", "none,layer,batch,rms,weight"},
                                    {"rnn", "none,layer,batch,rms,weight"}}) {
    const Ended ended = run({"--task",       "adding", "--length", "6", "--cell",   cell, "--norms",   norms, "--hidden", "6",
                             "--batch-size", "4",      "--steps",  "2", "--layers", "2",  "--dropout", "0.2", "--out",    (work / cell).string(),
                             "--no-figure",  "--json"});
    const json runs = results(ended)["runs"];
    CHECK(runs.size() == static_cast<size_t>(std::count(norms, norms + std::strlen(norms), ',')) + 1);
    for (const json& r : runs) {
      CHECK(r["steps"] == 2);
      CHECK(r["validation_mse"] > 0);
      CHECK(fs::exists(work / cell / r["norm"].get<std::string>() / "best.safetensors"));
    }
    for (const json& r : runs) {
      const Ended judged = run({"--eval", (work / cell / r["norm"].get<std::string>() / "last.safetensors").string(), "--json"});
      CHECK(results(judged)["drawn"]["mse"] == r["validation_mse"]);
    }
  }
}

TEST_CASE("--norms runs a comparison and draws it", "[apps][lstm]") {
  const TempDir work;
  const Ended ended = run(small(work / "run", {"--norms", "none,layer", "--eval-every", "3", "--json"}));
  REQUIRE(results(ended)["runs"].size() == 2);
  CHECK_THAT(ended.err, contains("[2/2] lstm, norm layer"));
  for (const char* norm : {"none", "layer"}) CHECK(json::parse(get(work / "run" / norm / "run.json"))["config"]["norm"] == norm);
  if (support::Process({"/usr/bin/python3", "-c", "import matplotlib"}).wait().code == 0) {  // figures are optional
    CHECK_THAT(ended.out, contains("figure "));
    CHECK_THAT(get(work / "run/figure.svg"), contains("<svg"));
  }
  const Ended again = run(small(work / "run", {"--norms", "none,layer,rms", "--eval-every", "3", "--resume", "--no-figure"}));
  CHECK(again.code == 0);
  CHECK_THAT(again.err, contains("norm none: finished before") && contains("[3/3] lstm, norm rms\n"));
}

TEST_CASE("stopped by a signal or killed it resumes bitwise (G04, F10, F12, F17)", "[apps][lstm]") {
  const TempDir work;
  const std::vector<std::string> options{"--epochs", "30",    "--eval-every", "7",   "--checkpoint-every", "5",
                                         "--norm",   "layer", "--dropout",    "0.1", "--layers",           "2"};
  REQUIRE(run(small(work / "whole", options)).code == 0);
  for (const int signal : {SIGINT, SIGKILL}) {
    const fs::path folder = work / std::to_string(signal);
    std::vector<std::string> command = small(folder, options);
    command.insert(command.begin(), LAMINA_BIN_DIR "/train_lstm");
    Ended stopped;
    for (int attempt = 0; attempt < 5 && stopped.code != 128 + signal; ++attempt) {  // on a busy machine the run may end before the signal is sent
      fs::remove_all(folder);
      support::Process process(command);
      REQUIRE(process.wait_for("epoch 2/30"));
      process.signal(signal);
      stopped = process.wait();
    }
    INFO(stopped.err);
    REQUIRE(stopped.code == 128 + signal);
    if (signal == SIGINT) {
      CHECK_THAT(stopped.err, contains("stopped at step ") && contains("--resume continues"));
      CHECK(json::parse(get(folder / "run.json"))["status"] == "interrupted");
    }
    std::vector<std::string> more = options;
    more.push_back("--resume");
    const Ended resumed = run(small(folder, more));
    CHECK(resumed.code == 0);
    CHECK_THAT(resumed.err, contains("continued from step "));
    CHECK(test::same_tensors(work / "whole/last.safetensors", folder / "last.safetensors"));
    CHECK(get(work / "whole/best.safetensors") == get(folder / "best.safetensors"));
    CHECK(test::rows(work / "whole") == test::rows(folder));
  }
}

TEST_CASE("results are safe: an existing run, another run's checkpoint, a full disk, a loss that is not finite", "[apps][lstm]") {
  const TempDir work;
  REQUIRE(run(small(work / "run", {"--epochs", "1"})).code == 0);
  const std::string checkpoint = get(work / "run/last.safetensors"), csv = get(work / "run/metrics.csv");
  check_refused(run(small(work / "run")), "holds a run already; --resume continues it");
  check_refused(run(small(work / "run", {"--resume", "--lr", "0.5"})), "its lr is 0.002, not 0.5");
  check_refused(run(small(work / "run", {"--resume"}, 500)), "data.symbols");                   // another text
  check_refused(run(small(work / "run", {"--resume", "--epochs", "1"}, 500)), "data.symbols");  // whose results those of the finished run are not

  // A checkpoint of another shape (F11).
  REQUIRE(run(small(work / "wide", {"--epochs", "1", "--hidden", "17"})).code == 0);
  fs::copy_file(work / "wide/last.safetensors", work / "run/last.safetensors", fs::copy_options::overwrite_existing);
  check_refused(run(small(work / "run", {"--resume"})),
                "last.safetensors: [language] state h: expected [1, 4, 16], got [1, 4, 17] (another architecture)");
  CHECK(get(work / "run/last.safetensors") == get(work / "wide/last.safetensors"));
  CHECK(get(work / "run/metrics.csv") == csv);
  std::string damaged = checkpoint;
  damaged[damaged.size() - 5] ^= 1;
  put(work / "run/last.safetensors", damaged);
  check_refused(run(small(work / "run", {"--resume"})), "last.safetensors");
  check_refused(run({"--eval", (work / "run/last.safetensors").string(), "x"}), "last.safetensors");
  put(work / "run/last.safetensors", checkpoint);
  CHECK(run(small(work / "run", {"--resume"})).code == 0);
  check_refused(run({"--eval", (work / "run/run.json").string(), "x"}), "run.json");

  const Ended full = run(small(work / "full"), [] {  // F14: files may not grow beyond 8 KiB
    const rlimit limit{8192, 8192};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  INFO(full.err);
  CHECK(full.code == 2);
  CHECK_THAT(full.err, contains("safetensors") && contains("cannot write"));
  CHECK_FALSE(fs::exists(work / "full/last.safetensors"));
  CHECK(run(small(work / "full", {"--resume"})).code == 0);

  const Ended wild = run(small(work / "wild", {"--lr", "1e38", "--clip", "0", "--optimizer", "sgd", "--cell", "rnn"}));
  CHECK(wild.code == 1);
  CHECK_THAT(wild.err, contains("train_lstm: [train] step ") && contains("lower the learning rate"));
  put(work / "file", "");
  check_refused(run(small(work / "file")), "file");
}
