// The program itself, on small files of its own.

#include <chrono>
#include <cmath>
#include <thread>

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "apps/image_files.h"
#include "apps/process.h"
#include "apps/program_checks.h"
#include "train/small_run.h"

using namespace lamina;
using nlohmann::json;
using support::Ended;
using support::last_line;
namespace fs = std::filesystem;
using support::get;
using support::put;
using support::put_images;
using support::TempDir;

namespace {

constexpr uint32_t train_count = 5000 + 130, test_count = 60;

const fs::path& data_dir() {
  static const TempDir dir;
  static const bool made = [] {
    put_images(dir.path(), "train", train_count, 1);
    put_images(dir.path(), "t10k", test_count, 2);
    return true;
  }();
  return (void)made, dir.path();
}

// Options that make a run small: one norm, one batch size, two narrow layers.
std::vector<std::string> small(const fs::path& out, std::vector<std::string> more = {}) {
  std::vector<std::string> options{"--data", data_dir().string(), "--out", out.string(), "--hidden", "8,6", "--epochs", "2", "--no-figure"};
  const auto has = [&](const char* name) { return std::find(more.begin(), more.end(), name) != more.end(); };
  if (!has("--norms")) options.insert(options.end(), {"--norms", "batch"});
  if (!has("--batch-sizes")) options.insert(options.end(), {"--batch-sizes", "16"});
  if (has("--epochs")) options.erase(options.begin() + 6, options.begin() + 8);
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

Ended run(const std::vector<std::string>& options, const std::function<void()>& prepare = {}) {
  return support::run("mnist_batchsize", options, prepare);
}

void check_refused(const Ended& ended, const std::string& text) { support::check_refused("mnist_batchsize", ended, text); }

}  // namespace

TEST_CASE("every norm and batch size trains; table, JSON and run folders agree", "[apps]") {
  const TempDir out;
  const Ended ended = run(small(out.path(), {"--norms", "none,layer,batch", "--batch-sizes", "128,4", "--seeds", "1,2", "--json", "--threads", "1"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const json runs = json::parse(last_line(ended.out))["runs"];
  REQUIRE(runs.size() == 12);
  for (const json& r : runs) {
    CHECK(r.size() == 9);
    CHECK(r["epochs"] == 2);
    CHECK(r["best_test_error"] <= r["final_test_error"]);
    CHECK(r["final_test_error"] <= 1.0);
    CHECK(r["final_train_nll"] > 0.0);
    CHECK(r["seconds_per_epoch"] > 0.0);
    CHECK(r["samples_per_second"] > 0.0);
    const fs::path folder =
        out / (r["norm"].get<std::string>() + "-n" + std::to_string(r["batch_size"].get<int>()) + "-s" + std::to_string(r["seed"].get<int>()));
    const json record = json::parse(get(folder / "run.json"));
    CHECK(record["status"] == "finished");
    CHECK(record["config"]["norm"] == r["norm"]);
    CHECK(record["config"]["hidden"] == std::vector<int>{8, 6});
    CHECK(record["results"]["final_test_error"] == r["final_test_error"]);
    if (r["norm"] == "batch") CHECK(record["config"]["bn_variance"] == (r["batch_size"] == 4 ? "unbiased" : "biased"));
    CHECK(fs::exists(folder / "last.safetensors"));
    CHECK(io::read_safetensors(folder / "best.safetensors").find("0.weight"));
    CHECK_THAT(test::rows(folder), contains("test,error," + r["final_test_error"].dump() + "\n"));
  }
  CHECK(std::count(ended.out.begin(), ended.out.end(), '%') == 12);  // six rows, two errors each
  CHECK_THAT(ended.out, contains("peak tensor memory"));
  CHECK_THAT(ended.err, contains("[12/12] norm batch, batch size 4, seed 2"));
  CHECK_THAT(ended.err, contains("epoch 2/2  train nll ") && contains("  test err ") && contains(" samples/s"));
  // G05: nothing but text in pipes.
  CHECK((ended.out + ended.err).find_first_of("\r\x1b") == std::string::npos);

  SECTION("without --resume the results are safe, with it they are kept") {
    const std::string csv = get(out / "layer-n4-s1/metrics.csv");
    check_refused(run(small(out.path(), {"--norms", "layer", "--batch-sizes", "4"})), "holds a run already; --resume continues it");
    CHECK(get(out / "layer-n4-s1/metrics.csv") == csv);
    const Ended again = run(small(out.path(), {"--norms", "layer", "--batch-sizes", "4", "--resume", "--json"}));
    CHECK(again.code == 0);
    CHECK_THAT(again.err, contains("finished before"));
    CHECK(json::parse(last_line(again.out))["runs"][0]["final_test_error"] == runs[8]["final_test_error"]);
    CHECK(get(out / "layer-n4-s1/metrics.csv") == csv);
    check_refused(run(small(out.path(), {"--norms", "layer", "--batch-sizes", "4", "--resume", "--lr", "0.5"})), "its lr is 0.001, not 0.5");
  }
}

TEST_CASE("the other norms train by name too", "[apps]") {
  const TempDir out;
  const std::string norms = "meanbatch,group:2,rms,prms:0.25,weight,weight+meanbatch";
  const Ended ended = run(small(out.path(), {"--norms", norms, "--bn-eval", "population", "--json"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  std::string named;
  const json result = json::parse(last_line(ended.out));
  for (const json& r : result["runs"]) {
    const std::string norm = r["norm"];
    named += (named.empty() ? "" : ",") + norm;
    const fs::path folder = out / (norm + "-n16-s1");
    const json config = json::parse(get(folder / "run.json"))["config"];
    CHECK(config["norm"] == norm);
    CHECK(config.contains("bn_eval") == (norm.find("meanbatch") != std::string::npos));
    CHECK_FALSE(config.contains("bn_variance"));
    CHECK((io::read_safetensors(folder / "best.safetensors").find("0.weight_g") != nullptr) == (norm.find("weight") == 0));
  }
  CHECK(named == norms);
}

TEST_CASE("the program learns", "[apps]") {
  const TempDir out;
  const Ended ended = run(small(out.path(), {"--norms", "layer", "--batch-sizes", "4", "--epochs", "6", "--lr", "0.01", "--json"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const json r = json::parse(last_line(ended.out))["runs"][0];
  CHECK(r["final_test_error"] < 0.3);
  CHECK(r["final_train_nll"] < 1.0);
}

TEST_CASE("every choice that the paper leaves open trains (G08)", "[apps]") {
  const std::vector<std::vector<std::string>> choices{
      {"--norm-output", "--norms", "layer"},
      {"--norm-after-relu"},
      {"--bn-eval", "population"},
      {"--bn-variance", "unbiased", "--bn-momentum", "1"},
      {"--input-range", "standard"},
      {"--init", "orthogonal"},
      {"--optimizer", "sgd", "--momentum", "0.9"},
      {"--schedule", "warmup=3,cosine:20", "--clip-norm", "1"},
      {"--hidden", "5"},
      {"--limit", "33", "--eval-every", "1", "--checkpoint-every", "2"},  // G01: 33 = 2 * 16 + 1
      {"--patience", "1", "--dataset", "fashion"},
  };
  for (const auto& choice : choices) {
    const TempDir out;
    std::vector<std::string> options = small(out.path(), {"--epochs", "1"});
    for (const std::string& word : choice) options.push_back(word);
    if (choice[0] == "--hidden") options.erase(options.begin() + 4, options.begin() + 6);
    if (choice.back() == "layer")
      options.erase(std::find(options.begin(), options.end(), "batch") - 1, std::find(options.begin(), options.end(), "batch") + 1);
    const Ended ended = run(options);
    INFO(choice[0] + ": " + ended.err);
    CHECK(ended.code == 0);
  }
}

TEST_CASE("wrong options are refused in one line", "[apps]") {
  const TempDir out;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--norms", "foo"}, "unknown 'foo'; expected one of none, layer, batch"},
      {{"--norms", "BatchNorm"}, "unknown 'BatchNorm'"},
      {{"--norms", "layer,layer"}, "--norms: layer is named twice"},
      {{"--norms", "prms:1,rms"}, "--norms: rms is named twice"},
      {{"--norms", "group:0"}, "--norms: [norm] 'group:0': expected group:N with a whole number"},
      {{"--norms", "layer,instance"},
       "--norms: [mlp] norm: 'instance' needs an axis after the channels, as in [N, C, L], got [N, 8]; expected one of"},
      {{"--norms", "group:4"}, "'group:4' does not divide 6 features into equal groups; expected one of none, layer, batch, meanbatch, group:3, rms"},
      {{"--norms", "meanbatch", "--batch-sizes", "1"}, "(leave 'meanbatch' out of --norms)"},
      {{"--batch-sizes", "0"}, "--batch-sizes: expected at least 1, got 0"},
      {{"--batch-sizes", "-4"}, "--batch-sizes: expected at least 1, got -4"},
      {{"--batch-sizes", "4.5"}, "--batch-sizes"},
      {{"--batch-sizes", "99999999999999999999"}, "--batch-sizes: expected at most 9223372036854775807"},
      {{"--batch-sizes", "4,"}, "--batch-sizes: an entry of '4,' is empty"},
      {{"--norms", "none,,layer"}, "--norms: an entry of 'none,,layer' is empty"},
      {{"--seeds=,1"}, "--seeds: an entry of ',1' is empty"},
      {{"--seeds", "9223372036854775808"}, "--seeds: expected at most 9223372036854775807"},
      {{"--eval-every", "1e3"}, "--eval-every: expected a whole number, got '1e3'"},
      {{"--batch-sizes", "131"}, "--batch-sizes: expected at most 130, the number of training images, got 131"},
      {{"--batch-sizes", "1"}, "batch norm needs at least 2 images in a batch, got 1"},
      {{"--batch-sizes", "4,4"}, "--batch-sizes: 4 is named twice"},
      {{"--seeds", "-1"}, "--seeds: expected at least 0, got -1"},
      {{"--seeds", ""}, "--seeds"},
      {{"--epochs", "0"}, "--epochs: expected at least 1, got 0"},
      {{"--epochs", "two"}, "--epochs"},
      {{"--limit", "-1"}, "--limit: expected at least 0, got -1"},
      {{"--lr", "0"}, "--lr: expected a number above 0, got 0"},
      {{"--lr", "nan"}, "--lr: expected a number above 0, got nan"},
      {{"--lr", "inf"}, "--lr"},
      {{"--beta1", "1"}, "--beta1: expected a number from 0 to below 1, got 1"},
      {{"--bn-momentum", "1.00000005"}, "--bn-momentum: expected a number from 0 to 1, got 1.00000005"},
      {{"--eps", "1e-50"}, "--eps: expected at least 1e-37, got 1e-50"},
      {{"--bn-eval", "best"}, "--bn-eval"},
      {{"--init", "zero"}, "--init: "},
      {{"--schedule", "cosine"}, "--schedule: "},
      {{"--dataset", "cifar"}, "--dataset"},
      {{"--device", "tpu"}, "expected auto, cpu, cuda"},
      {{"--device", "cpu", "--cuda-graph"}, "--cuda-graph: needs a GPU"},
      {{"--threads", "-1"}, "--threads: expected at least 0, got -1"},
      {{"--threads", "5000"}, "--threads: expected at most 1024, got 5000"},
      {{"--frobnicate"}, "--frobnicate"},
      {{"stray"}, "stray"},
      {{"--out"}, "--out"},
  };
  for (const auto& [options, text] : cases) {
    INFO(options[0] + " " + options.back());
    check_refused(run(small(out / "run", options)), text);
    CHECK_FALSE(fs::exists(out / "run"));
  }
}

TEST_CASE("help shows every default; a config file is read and unknown keys are refused", "[apps]") {
  const Ended help = run({"--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  for (const char* text : {"--norms", "none,layer,batch", "--batch-sizes", "128,4", "--epochs", "--lr", "0.001", "--bn-momentum", "--bn-eval",
                           "running", "--bn-variance", "--init", "--hidden", "1000,1000", "--input-range", "--device"})
    CHECK_THAT(help.out, contains(text));
  for (const std::string value : {"60", "0.1", "auto", "pytorch", "unit"})  // CLI11 2.5 writes [60] where 2.1 writes =60
    CHECK_THAT(help.out, contains("=" + value) || contains("[" + value + "]"));

  const TempDir out;
  put(out / "good.toml",
      "epochs = 1\nnorms = [\"none\", \"layer\"]\nbatch-sizes = [16]\nlr = 0.01\nno-figure = true\nhidden = [8, 6]\njson = true\n");
  const Ended ended =
      run({"--config", (out / "good.toml").string(), "--data", data_dir().string(), "--out", (out / "run").string(), "--limit", "40"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(json::parse(last_line(ended.out))["runs"].size() == 2);
  CHECK(json::parse(get(out / "run/layer-n16-s1/run.json"))["config"]["lr"] == 0.01);
  put(out / "bad.toml", "epochs = 1\nlearning-rate = 0.01\n");
  check_refused(run({"--config", (out / "bad.toml").string()}), "--config: unknown key 'learning-rate' in the file");
  put(out / "range.toml", "epochs = 0\n");
  check_refused(run({"--config", (out / "range.toml").string()}), "--epochs: expected at least 1, got 0");
  check_refused(run({"--config", (out / "missing.toml").string()}), "missing.toml");
}

TEST_CASE("missing, damaged and swapped data are refused before anything is written", "[apps]") {
  const TempDir work;
  const auto refused = [&](const std::string& text) {
    std::vector<std::string> options = small(work / "run");
    options[1] = (work / "data").string();
    check_refused(run(options), text);
    CHECK_FALSE(fs::exists(work / "run"));
  };
  refused("no such directory");
  fs::create_directory(work / "data");
  refused("found neither");
  fs::copy(data_dir(), work / "data", fs::copy_options::recursive);
  const fs::path images = work / "data/train-images-idx3-ubyte", labels = work / "data/train-labels-idx1-ubyte";
  const std::string image_bytes = get(images), label_bytes = get(labels);
  put(images, image_bytes.substr(0, image_bytes.size() - 1));
  refused("train-images-idx3-ubyte");
  put(images, label_bytes);
  refused("train-images-idx3-ubyte");
  put(images, image_bytes);
  std::string bad_label = label_bytes;
  bad_label[8 + 7] = 11;
  put(labels, bad_label);
  refused("label 11 at position 7");
  put_images(work / "data", "train", 5000, 1);
  refused("expected more than 5000 training images");
}

TEST_CASE("output that cannot be written is noticed (F14, G06)", "[apps]") {
  const TempDir work;
  put(work / "file", "");
  check_refused(run(small(work / "file")), "file");
  check_refused(run(small(work / "file/below")), "Not a directory");
  // A disk that is full when the checkpoint comes: files may not grow beyond 8 KiB.
  const Ended full = run(small(work / "run"), [] {
    const rlimit limit{8192, 8192};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  INFO(full.err);
  CHECK(full.code == 2);
  CHECK_THAT(full.err, contains("safetensors") && contains("cannot write"));
  CHECK_FALSE(fs::exists(work / "run/batch-n16-s1/last.safetensors"));
  const Ended resumed = run(small(work / "run", {"--resume"}));  // room again
  CHECK(resumed.code == 0);
  // Standard output on a full disk.
  const Ended mute = run(small(work / "mute"), [] {
    const int fd = open("/dev/full", O_WRONLY);
    dup2(fd, 1);
  });
  CHECK(mute.code == 1);
  CHECK_THAT(mute.err, contains("cannot write to standard output: No space left on device"));
}

TEST_CASE("a loss that is not finite ends with code 1, one line, and finite weights on disk (D12)", "[apps]") {
  const TempDir out;
  const Ended ended = run(small(out.path(), {"--norms", "none", "--lr", "1e30", "--checkpoint-every", "1", "--optimizer", "sgd"}));
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, contains("mnist_batchsize: [train] step ") && contains("lower the learning rate"));
  const json record = json::parse(get(out / "none-n16-s1/run.json"));
  CHECK_THAT(record["status"].get<std::string>(), contains("failed: [train] step "));
  const fs::path checkpoint = out / "none-n16-s1/last.safetensors";
  if (fs::exists(checkpoint))
    for (const auto& [name, tensor] : io::read_safetensors(checkpoint).tensors)
      for (const double value : test::values(tensor)) REQUIRE(std::isfinite(value));
}

TEST_CASE("a damaged or foreign checkpoint is refused on resume and left alone (F11)", "[apps]") {
  const TempDir out;
  REQUIRE(run(small(out.path(), {"--epochs", "1"})).code == 0);
  const fs::path checkpoint = out / "batch-n16-s1/last.safetensors";
  std::string bytes = get(checkpoint);
  bytes[bytes.size() - 5] ^= 1;
  put(checkpoint, bytes);
  const std::string csv = get(out / "batch-n16-s1/metrics.csv");
  check_refused(run(small(out.path(), {"--resume"})), "last.safetensors");  // before any run of the grid starts
  CHECK(get(checkpoint) == bytes);
  CHECK(get(out / "batch-n16-s1/metrics.csv") == csv);
}

TEST_CASE("a finished run is not shown for other data of the same size", "[apps]") {
  const TempDir work;
  fs::copy(data_dir(), work / "data", fs::copy_options::recursive);
  std::vector<std::string> options = small(work / "run");
  options[1] = (work / "data").string();
  REQUIRE(run(options).code == 0);
  options.push_back("--resume");
  CHECK(run(options).code == 0);
  put_images(work / "data", "t10k", test_count, 3);
  check_refused(run(options), "belongs to another run: data.test_crc32 is ");
}

TEST_CASE("stopped by SIGINT or SIGTERM it saves, says so, and resumes bitwise (G04)", "[apps]") {
  const TempDir out;
  const std::vector<std::string> options{"--epochs", "10", "--batch-sizes", "4", "--eval-every", "50"};
  REQUIRE(run(small(out / "whole", options)).code == 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    const fs::path folder = out / std::to_string(signal);
    std::vector<std::string> command = small(folder, options);
    command.insert(command.begin(), LAMINA_BIN_DIR "/mnist_batchsize");
    Ended stopped;
    for (int attempt = 0; attempt < 5 && stopped.code != 128 + signal; ++attempt) {  // on a busy machine the run may end before the signal is sent
      fs::remove_all(folder);
      support::Process process(command);
      REQUIRE(process.wait_for("epoch 3/10"));
      process.signal(signal);
      stopped = process.wait();
    }
    INFO(stopped.err);
    REQUIRE(stopped.code == 128 + signal);
    CHECK_THAT(stopped.err, contains("stopped at step ") && contains("--resume continues"));
    CHECK(stopped.out.empty());
    CHECK(json::parse(get(folder / "batch-n4-s1/run.json"))["status"] == "interrupted");
    std::vector<std::string> more = options;
    more.push_back("--resume");
    const Ended resumed = run(small(folder, more));
    CHECK(resumed.code == 0);
    CHECK_THAT(resumed.err, contains("continued from step "));
    CHECK(test::same_tensors(out / "whole/batch-n4-s1/last.safetensors", folder / "batch-n4-s1/last.safetensors"));
    CHECK(get(out / "whole/batch-n4-s1/best.safetensors") == get(folder / "batch-n4-s1/best.safetensors"));
    CHECK(test::rows(out / "whole/batch-n4-s1") == test::rows(folder / "batch-n4-s1"));
  }
}

TEST_CASE("killed at any moment it resumes bitwise (F10, F12, F17)", "[apps]") {
  const TempDir out;
  const std::vector<std::string> options{"--epochs", "8", "--checkpoint-every", "2", "--eval-every", "5", "--resume", "--bn-eval", "population"};
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  REQUIRE(run(small(out / "whole", options)).code == 0);
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - started);
  std::vector<std::string> command = small(out / "killed", options);
  command.insert(command.begin(), LAMINA_BIN_DIR "/mnist_batchsize");
  Rng rng(static_cast<uint64_t>(getpid()));
  int kills = 0;
  for (int round = 0; round < 12 && Clock::now() - started < std::chrono::seconds(20); ++round) {
    support::Process process(command);
    std::this_thread::sleep_for(whole / 10 + std::chrono::microseconds(rng.below(whole.count() / 2)));
    process.signal(SIGKILL);
    if (process.wait().code != 128 + SIGKILL) break;
    ++kills;
  }
  INFO(kills << " kills");
  CHECK(kills > 0);
  const Ended ended = run(small(out / "killed", options));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(test::same_tensors(out / "whole/batch-n16-s1/last.safetensors", out / "killed/batch-n16-s1/last.safetensors"));
  CHECK(get(out / "whole/batch-n16-s1/best.safetensors") == get(out / "killed/batch-n16-s1/best.safetensors"));
  CHECK(test::rows(out / "whole/batch-n16-s1") == test::rows(out / "killed/batch-n16-s1"));
  for (const auto& entry : fs::directory_iterator(out / "killed/batch-n16-s1")) CHECK(entry.path().extension() != ".tmp");
}

TEST_CASE("results depend on the seed, and repeat (G09)", "[apps]") {
  const TempDir out;
  const auto result = [&](const char* name, const char* seed) {
    REQUIRE(run(small(out / name, {"--seeds", seed})).code == 0);
    return test::rows(out / name / (std::string("batch-n16-s") + seed));
  };
  const std::string first = result("a", "1");
  CHECK(first == result("b", "1"));
  CHECK(first != result("c", "2"));
}
