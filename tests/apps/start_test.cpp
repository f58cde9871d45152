// How a program starts: once more, with a short spin for OpenMP's idle threads, where that is right.

#include <fstream>
#include <sstream>

#include "apps/process.h"
#include "support/catch.h"
#include "support/files.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* program = LAMINA_BIN_DIR "/mnist_batchsize";

std::string content(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The settings of a run under way: whether it has the short spin, and its name in ps.
struct Settings {
  bool spins_briefly;
  std::string name;
};

Settings settings_of_run(const std::function<void()>& prepare) {
  const support::TempDir out;
  support::Process run({program, "--norms", "none", "--batch-sizes", "16", "--hidden", "8", "--limit", "100", "--epochs", "1000000", "--no-figure",
                        "--out", (out / "run").string()},
                       prepare);
  REQUIRE(run.wait_for("epoch 1/"));
  const fs::path proc = fs::path("/proc") / std::to_string(run.pid());
  const std::string environment = content(proc / "environ"), setting = "GOMP_SPINCOUNT=2000";
  return {environment.find(setting) != std::string::npos, content(proc / "comm")};
}

/// The loader of this machine's programs, from a mapping of this one.
std::string loader() {
  std::istringstream maps(content("/proc/self/maps"));
  for (std::string line; std::getline(maps, line);)
    if (const size_t at = line.find('/'); at != std::string::npos && line.find("/ld-") != std::string::npos) return line.substr(at);
  return "";
}

}  // namespace

TEST_CASE("a program has the short spin, and its own name, unless the environment says how to wait", "[apps]") {
  const auto clean = [] { unsetenv("GOMP_SPINCOUNT"), unsetenv("OMP_WAIT_POLICY"); };
  const Settings usual = settings_of_run(clean);
  CHECK(usual.spins_briefly);
  CHECK(usual.name == "mnist_batchsize\n");
  CHECK_FALSE(settings_of_run([&] { clean(), setenv("OMP_WAIT_POLICY", "passive", 1); }).spins_briefly);
  CHECK_FALSE(settings_of_run([&] { clean(), setenv("GOMP_SPINCOUNT", "7", 1); }).spins_briefly);
}

TEST_CASE("a program that another has loaded does not leave it", "[apps]") {
  REQUIRE(!loader().empty());
  const support::Ended ended =
      support::Process({loader(), LAMINA_BIN_DIR "/bench", "--list"}, [] { unsetenv("GOMP_SPINCOUNT"), unsetenv("OMP_WAIT_POLICY"); }).wait();
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, contains("step/mlp-layer-n4-adam\n"));
}

TEST_CASE("a program says of which version it is", "[apps]") {
  for (const std::string name : {"bench", "mnist_batchsize", "norm_compare", "norm_table"}) {
    const support::Ended ended = support::run(name, {"--version"});
    INFO(ended.err);
    CHECK(ended.code == 0);
    CHECK(ended.out.starts_with(name + " of lamina 0."));
    CHECK(ended.out.ends_with("\n"));
  }
}
