#include <lamina/train/run_log.h>

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include <lamina/core/error.h>

#include "support/catch.h"
#include "support/files.h"

using namespace lamina;
using namespace lamina::train;
namespace fs = std::filesystem;
using support::get;
using support::put;
using support::TempDir;

namespace {

const std::string header = "step,epoch,wall_s,split,metric,value\n";

RunInfo info(int64_t batch_size = 8, int64_t epochs = 3) {
  return {.app = "test", .config = {{"norm", "layer"}, {"batch_size", batch_size}, {"epochs", epochs}}, .may_change = {"epochs"}, .seed = 7};
}

nlohmann::json record(const TempDir& dir) { return nlohmann::json::parse(get(dir / "run.json")); }

}  // namespace

TEST_CASE("config values as JSON: escaped, exact, and null for what JSON has not (F16)", "[train][run_log]") {
  CHECK(to_json(ConfigValue(std::nan(""))) == "null");
  CHECK(to_json(ConfigValue(std::numeric_limits<double>::infinity())) == "null");
  CHECK(to_json(ConfigValue(0.1)) == "0.1");
  CHECK(to_json(ConfigValue(true)) == "true");
  CHECK(to_json(ConfigValue("a \"b\"\n\\c")) == R"("a \"b\"\n\\c")");
  CHECK(to_json(ConfigValue(std::vector<int64_t>{1000, 10})) == "[1000,10]");
  CHECK(to_json(Config{{"lr", 1e-3}, {"n", 4}}) == R"({"lr":0.001,"n":4})");
  CHECK(nlohmann::json::accept(to_json(ConfigValue("\xff\xfe"))));  // a path need not be UTF-8
}

TEST_CASE("run.json says what ran, on what, and how it ended", "[train][run_log]") {
  const TempDir dir;
  {
    RunLog log(dir / "a/b/c", info());  // G06: missing folders are made
    log.start();
  }
  RunLog log(dir.path(), info());
  log.start();
  auto json = record(dir);
  CHECK(json["status"] == "running");
  CHECK(json["app"] == "test");
  CHECK(json["config"]["norm"] == "layer");
  CHECK(json["config"]["batch_size"] == 8);
  CHECK(json["seed"] == 7);
  CHECK(json["device"] == "cpu");
  CHECK(json["threads"].get<int>() >= 1);
  CHECK(json["blas"].get<std::string>().find("BLAS") != std::string::npos);
  CHECK(!json["build"].get<std::string>().empty());
  CHECK(!json["git"].get<std::string>().empty());
  CHECK(json["started"].get<std::string>().size() == 20);
  log.finish("finished", {{"error", std::nan("")}, {"nll", 0.25}, {"epochs", 3}});
  json = record(dir);
  CHECK(json["status"] == "finished");
  CHECK(json["results"]["error"].is_null());
  CHECK(json["results"]["nll"] == 0.25);
  CHECK(json.contains("finished"));

  const auto past = find_run(dir.path(), info(8, 5));  // the number of epochs may change
  REQUIRE(past);
  CHECK(past->status == "finished");
  REQUIRE(past->results.size() == 3);
  CHECK(std::isnan(std::get<double>(past->results[0].second)));
  CHECK(past->results[1].second == ConfigValue(0.25));
  CHECK(past->results[2].second == ConfigValue(3));
}

TEST_CASE("a folder with another run, a damaged record or results of unknown origin is refused, in one line", "[train][run_log]") {
  const TempDir dir;
  CHECK_FALSE(find_run(dir / "nothing here", info()));
  {
    RunLog log(dir.path(), info());
    log.start();
  }
  const std::string before = get(dir / "run.json");
  CHECK_THROWS_WITH(RunLog(dir.path(), info(4)), contains("holds another run: its batch_size is 8, not 4"));
  RunInfo other = info();
  other.app = "other";
  CHECK_THROWS_WITH(find_run(dir.path(), other), contains("another program, 'test'"));
  other = info();
  other.config.emplace_back("lr", 0.5);
  CHECK_THROWS_AS(find_run(dir.path(), other), InputError);
  CHECK_THROWS_WITH(find_run(dir.path(), other), contains("its lr is not recorded, not 0.5"));
  CHECK(get(dir / "run.json") == before);
  for (const char* text :
       {"", "{", "[]", "{}", R"({"app": "test", "config": 3, "status": "running"})", R"({"config": {}, "status": "running"})",
        R"({"app": 5, "config": {}, "status": "running"})", R"({"app": "test", "config": {"norm": "layer", "batch_size": 8}, "status": 1})",
        R"({"app": "test", "config": {"norm": "layer", "batch_size": 8}, "status": "running", "results": {"a": ["b"]}})"}) {
    put(dir / "run.json", text);
    CHECK_THROWS_WITH(find_run(dir.path(), info()), contains("run.json: damaged"));
  }
  fs::remove(dir / "run.json");
  CHECK_THROWS_WITH(find_run(dir.path(), info()), contains("holds a metrics.csv but no run.json"));
}

TEST_CASE("damaged metrics are refused before the record of the earlier session is touched", "[train][run_log]") {
  const TempDir dir;
  {
    RunLog log(dir.path(), info());
    log.start();
    log.finish("finished", {{"error", 0.25}});
  }
  const std::string before = get(dir / "run.json");
  for (const std::string& text : {std::string("not csv\n"), header + "one,1,0,test,error,0.5\n"}) {
    put(dir / "metrics.csv", text);
    RunLog log(dir.path(), info());
    CHECK_THROWS_AS(log.start(1), InputError);
    CHECK(get(dir / "run.json") == before);
    CHECK(get(dir / "metrics.csv") == text);
  }
}

TEST_CASE("two processes do not write into one folder", "[train][run_log]") {
  const TempDir dir;
  const RunLog first(dir.path(), info());
  CHECK_THROWS_WITH(RunLog(dir.path(), info()), contains("another process is working in this folder"));
}

TEST_CASE("rows are written exactly and whole", "[train][run_log]") {
  const TempDir dir;
  RunLog log(dir.path(), info());
  CHECK_THROWS_WITH(log.append({}), contains("not started"));
  log.start();
  CHECK(get(dir / "metrics.csv") == header);
  log.append({{1, 0.5, 1.25, "train", "nll", 0.1}, {1, 0.5, 1.25, "test", "error", std::nan("")}});
  log.append({{2, 1, 2, "train", "nll", 1.0 / 3}});
  CHECK(get(dir / "metrics.csv") == header + "1,0.5,1.250,train,nll,0.1\n1,0.5,1.250,test,error,nan\n2,1,2.000,train,nll,0.3333333333333333\n");
}

TEST_CASE("on resume, rows past the checkpoint and a torn last line are dropped (F17)", "[train][run_log]") {
  const TempDir dir;
  {
    RunLog log(dir.path(), info());
    log.start();
    for (int64_t step = 1; step <= 4; ++step) log.append({{step, static_cast<double>(step), 0, "test", "error", 0.5}});
  }
  put(dir / "metrics.csv", get(dir / "metrics.csv") + "5,5,0.0");
  {
    RunLog log(dir.path(), info());
    log.start(3);
    log.append({{4, 4, 0, "test", "error", 0.25}});
  }
  CHECK(get(dir / "metrics.csv") ==
        header + "1,1,0.000,test,error,0.5\n2,2,0.000,test,error,0.5\n3,3,0.000,test,error,0.5\n4,4,0.000,test,error,0.25\n");
  {
    RunLog log(dir.path(), info());
    log.start(0);  // killed before its first checkpoint: from the beginning
  }
  CHECK(get(dir / "metrics.csv") == header);
  for (const std::string& torn : {header.substr(0, 9), std::string()}) {  // killed while the file began
    put(dir / "metrics.csv", torn);
    RunLog log(dir.path(), info());
    log.start(0);
    CHECK(get(dir / "metrics.csv") == header);
  }
  for (const std::string& damage : {std::string("other,columns\n"), header + "x,1,0.0,test,error,1\n"}) {
    put(dir / "metrics.csv", damage);
    RunLog log(dir.path(), info());
    CHECK_THROWS_WITH(log.start(3), contains("metrics.csv: "));
    CHECK(get(dir / "metrics.csv") == damage);
  }
}

TEST_CASE("what cannot be written is noticed (F14, G06)", "[train][run_log]") {
  const TempDir dir;
  put(dir / "file", "");
  CHECK_THROWS_AS(RunLog(dir / "file", info()), InputError);
  CHECK_THROWS_WITH(RunLog(dir / "file", info()), contains("file: cannot make this folder"));
  CHECK_THROWS_WITH(RunLog(dir / "file/below", info()), contains("cannot make this folder: Not a directory"));
  CHECK_THROWS_AS(RunLog("/proc/nowhere", info()), InputError);
  {
    RunLog log(dir / "run", info());
    log.start();
  }
  fs::remove(dir / "run/metrics.csv");
  fs::create_symlink("/dev/full", dir / "run/metrics.csv");
  // The header is the first that does not fit.
  RunLog log(dir / "run", info());
  CHECK_THROWS_WITH(log.start(), contains("metrics.csv"));
}
