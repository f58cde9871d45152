// The programs on a GPU: the emulated one, or with LAMINA_CUDA a real one.

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "apps/image_files.h"
#include "apps/process.h"
#include "apps/program_checks.h"
#include "train/small_run.h"

using namespace lamina;
using nlohmann::json;
using support::check_refused;
using support::Ended;
using support::results;
namespace fs = std::filesystem;
using support::get;
using support::put;
using support::TempDir;
using Words = std::vector<std::string>;

namespace {

/// Scores of f32 models that were trained alike on two devices, some tens of steps: sums in another order, through all of these. Of models without
/// layer norm: the parameters that it makes idle have rounding for a gradient, which Adam makes steps of.
constexpr double score_agreement = 1e-4;

Words with(Words options, const Words& more) {
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

Words command(const std::string& program, const Words& options) { return with({LAMINA_DEVICE_BIN_DIR "/" + program}, options); }
Ended run(const std::string& program, const Words& options) { return support::Process(command(program, options)).wait(); }
/// On a machine without a GPU.
Ended run_alone(const std::string& program, const Words& options) {
  return support::Process(command(program, options), [] { setenv("CUDA_VISIBLE_DEVICES", "", 1); }).wait();
}

/// A small language model of a text in which each character follows from those before: two layers, dropout, and a state that is carried along.
/// `more`: --epochs or --steps, and the rest.
Words language(const fs::path& out, const Words& more = {}) {
  const fs::path file = out.parent_path() / "text.txt";
  if (!fs::exists(file)) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the cat sat.\n";
    put(file, text);
  }
  return with({"--task", "text", file.string(), "--out", out.string(), "--embedding", "4", "--hidden", "8", "--layers", "2", "--batch-size", "3",
               "--bptt", "10", "--lr", "0.02", "--dropout", "0.1"},
              more);
}

/// The only run of a program's JSON.
json only(const Ended& ended) { return results(ended)["runs"].at(0); }

}  // namespace

TEST_CASE("a program says which device it took, and refuses one that is not there in one line (H05)", "[apps][cuda]") {
  const TempDir work;
  const auto train = [&](const char* out, const Words& more) {
    return with({"--task", "adding", "--length", "3", "--hidden", "2", "--steps", "1", "--batch-size", "2", "--out", (work / out).string()}, more);
  };
  const Ended by_itself = run("train_lstm", train("auto", {})), cpu = run("train_lstm", train("cpu", {"--device", "cpu"}));
  const Ended alone = run_alone("train_lstm", train("alone", {}));
  INFO(by_itself.err << cpu.err << alone.err);
  CHECK((by_itself.code == 0 && cpu.code == 0 && alone.code == 0));
  CHECK_THAT(by_itself.err, contains("\non cuda:0 ("));
  CHECK_THAT(cpu.err, contains("\non cpu\n") && !contains("GPU"));
  CHECK_THAT(alone.err, contains("train_lstm: no GPU, so this runs on the CPU: [device] cuda:0: ") && contains("\non cpu\n"));
  CHECK(json::parse(get(work / "auto/run.json"))["device"] == "cuda:0");
  CHECK(json::parse(get(work / "alone/run.json"))["device"] == "cpu");

  check_refused("train_lstm", run_alone("train_lstm", train("none", {"--device", "cuda"})), "--device: [device] cuda:0: ");
  check_refused("train_lstm", run("train_lstm", train("none", {"--device", "cpu", "--cuda-graph"})), "--cuda-graph: needs a GPU");
  for (const char* program : {"bench", "mnist_batchsize", "norm_compare", "norm_table", "train_lstm"}) {
    check_refused(program, run(program, {"--device", "cuda:70"}), "--device: [device] cuda:70: expected an index below ");
    check_refused(program, run(program, {"--device", "gpu"}), "--device: [device] expected auto, cpu, cuda or cuda:<index>, got 'gpu'");
    if (!built_with_cuda())
      check_refused(program, support::run(program, {"--device", "cuda"}), "--device: [device] cuda:0: built without CUDA; configure with ");
  }
  CHECK_FALSE(fs::exists(work / "none"));
}

TEST_CASE("train_lstm on a GPU: plain steps and a CUDA graph give the same bits, stopped and resumed too", "[apps][cuda]") {
  const TempDir work;
  const Words options{"--epochs", "3", "--eval-every", "5", "--norm", "layer", "--device", "cuda"};
  const Ended plain = run("train_lstm", language(work / "plain", with(options, {"--json"})));
  const json scores = only(plain);
  CHECK(scores["validation_nll"] < 2.0);  // 2.3 is guessing
  CHECK_THAT(plain.err, contains("on cuda:0 ("));
  CHECK(run("train_lstm", language(work / "graph", with(options, {"--cuda-graph"}))).code == 0);
  CHECK(test::same_tensors(work / "plain/last.safetensors", work / "graph/last.safetensors"));
  CHECK(test::rows(work / "plain") == test::rows(work / "graph"));

  // In two sessions, the first of which ends within an epoch, with and without a graph.
  CHECK(run("train_lstm", language(work / "parts", {"--steps", "31", "--eval-every", "5", "--norm", "layer", "--device", "cuda", "--cuda-graph"}))
            .code == 0);
  const Ended resumed = run("train_lstm", language(work / "parts", with(options, {"--resume"})));
  CHECK_THAT(resumed.err, contains("continued from step 31") && !contains("warning"));
  CHECK(test::same_tensors(work / "plain/last.safetensors", work / "parts/last.safetensors"));
}

TEST_CASE("train_lstm: Ctrl-C on a GPU saves, and --resume comes to the bits of a run that was not stopped", "[apps][cuda]") {
  const TempDir work;
  const Words options{"--epochs", "4", "--norm", "layer", "--device", "cuda", "--cuda-graph"};
  Ended stopped;
  for (int attempt = 0; attempt < 5 && stopped.code != 130; ++attempt) {  // on a busy machine the run may end before the signal is sent
    fs::remove_all(work / "stopped");
    support::Process process(command("train_lstm", language(work / "stopped", options)));
    REQUIRE(process.wait_for("epoch 1/4"));
    process.signal(SIGINT);
    stopped = process.wait();
  }
  INFO(stopped.err);
  REQUIRE(stopped.code == 130);
  CHECK_THAT(stopped.err, contains("stopped at step ") && contains("--resume continues"));
  const Ended resumed = run("train_lstm", language(work / "stopped", with(options, {"--resume"})));
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.err, contains("continued from step "));
  CHECK(run("train_lstm", language(work / "whole", options)).code == 0);
  CHECK(test::same_tensors(work / "whole/last.safetensors", work / "stopped/last.safetensors"));
  CHECK(test::rows(work / "whole") == test::rows(work / "stopped"));
}

TEST_CASE("train_lstm: a run changes devices, and says so; a model is used on either", "[apps][cuda]") {
  const TempDir work;
  json scores;
  for (const auto& [first, second] : {std::pair{"cpu", "cuda"}, {"cuda", "cpu"}}) {
    const fs::path out = work / first;
    CHECK(run("train_lstm", language(out, {"--epochs", "1", "--device", first})).code == 0);
    const Ended resumed = run("train_lstm", language(out, {"--epochs", "3", "--resume", "--device", second, "--json"}));
    scores.push_back(only(resumed)["validation_nll"]);
    CHECK_THAT(resumed.err, contains(std::string("warning: the run so far was on ") + first + ", now on " + second + ": "));
  }
  const json whole = only(run("train_lstm", language(work / "whole", {"--epochs", "3", "--device", "cpu", "--json"})));
  for (const json& score : scores) CHECK(std::abs(whole["validation_nll"].get<double>() - score.get<double>()) < score_agreement);

  const std::string model = (work / "cuda/last.safetensors").string(), file = (work / "text.txt").string();
  const auto use = [&](const char* device, const Words& options) { return run("train_lstm", with(options, {"--device", device})); };
  const json cpu = results(use("cpu", {"--eval", model, file, "--json"}))["text"],
             cuda = results(use("cuda", {"--eval", model, file, "--json"}))["text"];
  CHECK(cuda["count"] == cpu["count"]);
  CHECK(std::abs(cuda["nll"].get<double>() - cpu["nll"].get<double>()) < 1e-5);  // one forward pass
  const Words sample{"--sample", "40", "--checkpoint", model, "--prompt", "the "};
  const Ended sampled = use("cuda", sample);
  INFO(sampled.err);
  CHECK(sampled.code == 0);
  CHECK(sampled.out == use("cpu", sample).out);
  CHECK(sampled.out.size() == 4 + 40 + 1);
}

TEST_CASE("train_lstm on a GPU: your own sequences, of several lengths, with --predict", "[apps][cuda]") {
  const TempDir work;
  std::string csv = "sequence,x,y,label\n";
  Rng rng(1);
  for (int i = 0; i < 60; ++i)
    for (int64_t t = rng.below(6) == 0 ? 1 : 3; t > 0; --t)  // some batches have one length, others of the same shape several
      csv += std::to_string(i) + "," + std::to_string(rng.uniform() + i % 3) + "," + std::to_string(rng.uniform()) + "," + "abc"[i % 3] + "\n";
  put(work / "train.csv", csv);
  const auto train = [&](const char* out, const Words& more) {
    return run("train_lstm", with({"--task",
                                   "csv",
                                   (work / "train.csv").string(),
                                   "--classify",
                                   "label",
                                   "--hidden",
                                   "6",
                                   "--cell",
                                   "gru",
                                   "--bidirectional",
                                   "--batch-size",
                                   "4",
                                   "--lr",
                                   "0.05",
                                   "--epochs",
                                   "4",
                                   "--device",
                                   "cuda",
                                   "--json",
                                   "--out",
                                   (work / out).string()},
                                  more));
  };
  CHECK(only(train("run", {}))["best_validation_error"] <= 0.5);  // two of three would be wrong by chance
  const Ended graph = train("graph", {"--cuda-graph"});
  INFO(graph.err);
  CHECK(graph.code == 0);
  CHECK(test::same_tensors(work / "run/last.safetensors", work / "graph/last.safetensors"));
  check_refused("train_lstm", train("noise", {"--cuda-graph", "--state-noise", "0.1"}), "--cuda-graph: not with --state-noise");
  const std::string out = (work / "run").string();
  put(work / "new.csv", "sequence,x,y\na,0.1,0.5\na,0.2,0.5\nb,2.5,0\nc,1.1,1\n");
  const Words predict{"--predict", (work / "new.csv").string(), "--out", out, "--device"};
  const Ended cuda = run("train_lstm", with(predict, {"cuda"})), cpu = run("train_lstm", with(predict, {"cpu"}));
  INFO(cuda.err);
  CHECK(cuda.code == 0);
  CHECK(cuda.out.starts_with("sequence,label,probability\na,a,"));
  CHECK(std::count(cuda.out.begin(), cuda.out.end(), '\n') == 4);
  CHECK(cuda.out.substr(0, 30) == cpu.out.substr(0, 30));
}

TEST_CASE("mnist_batchsize on a GPU: plain and as a CUDA graph, resumed and between devices; norm_compare too", "[apps][cuda]") {
  const TempDir work;
  fs::create_directory(work / "data");
  support::put_images(work / "data", "train", 5000 + 50, 1);
  support::put_images(work / "data", "t10k", 30, 2);
  const auto options = [&](const char* out, const Words& more) {
    return with({"--data", (work / "data").string(), "--hidden", "6,5", "--norms", "layer,batch", "--batch-sizes", "12", "--lr", "0.01",
                 "--no-figure", "--out", (work / out).string()},
                more);
  };
  const Ended plain = run("mnist_batchsize", options("plain", {"--epochs", "2", "--device", "cuda", "--json"}));
  const json rows = results(plain)["runs"];
  REQUIRE(rows.size() == 2);
  CHECK_THAT(plain.err, contains("on cuda:0 (") && contains("[2/2] norm batch"));
  CHECK(run("mnist_batchsize", options("graph", {"--epochs", "2", "--device", "cuda", "--cuda-graph"})).code == 0);
  const json cpu = results(run("mnist_batchsize", options("cpu", {"--epochs", "2", "--device", "cpu", "--json"})))["runs"];
  CHECK(run("mnist_batchsize", options("parts", {"--epochs", "1", "--device", "cuda", "--cuda-graph"})).code == 0);
  const Ended resumed = run("mnist_batchsize", options("parts", {"--epochs", "2", "--device", "cuda", "--resume"}));
  CHECK(resumed.code == 0);
  for (size_t i = 0; i < 2; ++i) {
    const std::string cell = rows[i]["norm"].get<std::string>() + "-n12-s1";
    INFO(cell);
    for (const char* other : {"graph", "parts"})
      CHECK(test::same_tensors(work / "plain" / cell / "last.safetensors", work / other / cell / "last.safetensors"));
    CHECK(test::rows(work / "plain" / cell) == test::rows(work / "graph" / cell));
    CHECK(std::abs(rows[i]["final_train_nll"].get<double>() - cpu[i]["final_train_nll"].get<double>()) < score_agreement);
  }
  const Ended moved = run("mnist_batchsize", options("plain", {"--epochs", "3", "--device", "cpu", "--resume"}));
  CHECK(moved.code == 0);
  CHECK_THAT(moved.err, contains("warning: the run so far was on cuda, now on cpu"));
  const Ended compared =
      run("norm_compare", {"--data", (work / "data").string(), "--depth", "2", "--width", "4", "--norms", "rms", "--batch-sizes", "12", "--seeds",
                           "1", "--epochs", "1", "--device", "cuda", "--no-figure", "--out", (work / "compared").string()});
  INFO(compared.err);
  CHECK(compared.code == 0);
}

TEST_CASE("norm_table and bench run on a GPU", "[apps][cuda]") {
  const Ended table = run("norm_table", {"--device", "cuda", "--json"});
  INFO(table.err);
  CHECK(table.code == 0);
  CHECK(json::parse(table.out)["agrees"] == true);
  const Ended times = run("bench", {"--device", "cuda", "--filter", "step/mlp-layer-n4-sgd", "--repeat", "1", "--json"});
  CHECK(json::parse(times.out)["us"] > 0);
}
