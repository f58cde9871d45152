#include <lamina/train/run_log.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string_view>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lamina/core/parallel.h>
#include "core/format.h"

namespace lamina::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view csv_header = "step,epoch,wall_s,split,metric,value\n";
constexpr int64_t largest_csv = int64_t{4} << 30, largest_record = 16 << 20;

Json as_json(const ConfigValue& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

Json as_json(const Config& config) {
  Json object = Json::object();
  for (const auto& [name, value] : config) object[name] = as_json(value);
  return object;
}

ConfigValue from_json(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) return json.get<std::vector<int64_t>>();
  return std::numeric_limits<double>::quiet_NaN();
}

// nlohmann writes doubles shortest-exact and those that are not finite as null; text that is not UTF-8 (a path may be) gets replacement characters.
std::string dump(const Json& json, int indent = -1) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// Doubles as text that reads back exactly and is as short as possible.
std::string exact(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, std::isnan(value) ? std::abs(value) : value).ptr};
}

std::string csv_row(const MetricRow& row) {
  return fmt::format("{},{},{:.3f},{},{},{}\n", row.step, exact(row.epoch), row.wall_s, row.split, row.metric, exact(row.value));
}

// The whole rows of `csv` that were written up to `step`.
std::string rows_until(const std::string& csv, int64_t step, const fs::path& path) {
  if (csv.empty()) return std::string(csv_header);
  if (!std::string_view(csv).starts_with(csv_header.substr(0, std::min(csv.size(), csv_header.size()))))
    fail_input("run", "{}: expected the header '{}'", path.string(), csv_header.substr(0, csv_header.size() - 1));
  std::string kept(csv_header);
  for (size_t begin = csv_header.size(), end; begin < csv.size() && (end = csv.find('\n', begin)) != std::string::npos; begin = end + 1) {
    int64_t row_step = 0;
    const auto [rest, error] = std::from_chars(csv.data() + begin, csv.data() + end, row_step);
    if (error != std::errc() || *rest != ',') fail_input("run", "{}: damaged row '{}'", path.string(), csv.substr(begin, end - begin));
    if (row_step <= step) kept.append(csv, begin, end + 1 - begin);
  }
  return kept;
}

int lock_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(fd);
    fail_input("run", "{}: another process is working in this folder", folder.string());
  }
  return fd;  // file systems without locks are taken as they are
}

}  // namespace

std::string to_json(const ConfigValue& value) { return dump(as_json(value)); }
std::string to_json(const Config& config) { return dump(as_json(config)); }

std::string git_revision() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen("git --no-optional-locks -C '" LAMINA_SOURCE_DIR "' describe --always --abbrev=12 --exclude='*' --dirty=+dirty 2>/dev/null", "re"),
      ::pclose);
  std::array<char, 64> text{};
  if (!pipe || !std::fgets(text.data(), text.size(), pipe.get())) return "unknown";
  const std::string revision(text.data());
  return revision.substr(0, revision.find('\n'));
}

namespace {

// Compares what a record says with the run that is to be; type errors of nlohmann mean that somebody else wrote it.
PastRun past_run(const Json& record, const fs::path& folder, const RunInfo& info) {
  const auto app = record.at("app").get<std::string>();
  if (app != info.app) fail_input("run", "{}: holds a run of another program, '{}'", folder.string(), app);
  const Json& theirs = record.at("config");
  (void)theirs.get_ref<const Json::object_t&>();        // throws for what is no object
  const Json ours = Json::parse(to_json(info.config));  // through text, so that both are what a file can hold
  for (const auto& [name, value] : ours.items()) {
    if (std::ranges::find(info.may_change, name) != info.may_change.end()) continue;
    if (!theirs.contains(name) || theirs[name] != value)
      fail_input("run", "{}: holds another run: its {} is {}, not {}; choose another folder", folder.string(), name,
                 theirs.contains(name) ? dump(theirs[name]) : "not recorded", dump(value));
  }
  PastRun past{record.at("status").get<std::string>(), {}};
  if (record.contains("results") && record["results"].is_object())
    for (const auto& [name, value] : record["results"].items()) past.results.emplace_back(name, from_json(value));
  return past;
}

}  // namespace

std::optional<PastRun> find_run(const fs::path& folder, const RunInfo& info) {
  const fs::path path = folder / "run.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    for (const char* name : {"metrics.csv", "last.safetensors", "best.safetensors"})
      if (fs::exists(folder / name, ignored)) fail_input("run", "{}: holds a {} but no run.json; choose another folder", folder.string(), name);
    return std::nullopt;
  }
  const std::string text = io::read_file(path, largest_record);
  const Json record = Json::parse(text, nullptr, false);
  try {
    return past_run(record, folder, info);
  } catch (const Json::exception&) {
    fail_input("run", "{}: damaged", path.string());
  }
}

RunLog::RunLog(fs::path folder, RunInfo info) : folder_(std::move(folder)), info_(std::move(info)), started_(utc_now()) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (std::error_code ignored; !fs::is_directory(folder_, ignored))
    fail_input("run", "{}: cannot make this folder: {}", folder_.string(), error ? error.message() : "there is a file of that name");
  lock_ = lock_folder(folder_);
  try {
    find_run(folder_, info_);
  } catch (...) {
    if (lock_ >= 0) ::close(lock_);
    throw;
  }
}

void RunLog::start(int64_t step) {
  const fs::path csv = folder_ / "metrics.csv";
  const std::string before = fs::exists(csv) ? io::read_file(csv, largest_csv) : std::string();
  const std::string kept = rows_until(before, step, csv);
  write_record("running", {});  // not before the rows were found right: the record of an earlier session may hold results
  if (kept != before) io::write_file_atomically(csv, kept);
  metrics_.emplace(io::OutputFile::append(csv));
}

RunLog::~RunLog() {
  if (lock_ >= 0) ::close(lock_);
}

void RunLog::append(const std::vector<MetricRow>& rows) {
  if (!metrics_) fail("run", "append: the log was not started");
  std::string text;
  for (const MetricRow& row : rows) text += csv_row(row);
  metrics_->write(text);
}

void RunLog::sync() {
  if (metrics_) metrics_->sync();
}

void RunLog::finish(const std::string& status, const Config& results) { write_record(status, results); }

void RunLog::write_record(const std::string& status, const Config& results) {
  Json record;
  record["app"] = info_.app;
  record["status"] = status;
  record["started"] = started_;
  if (status != "running") record["finished"] = utc_now();
  record["config"] = as_json(info_.config);
  record["seed"] = info_.seed;
  record["device"] = info_.device.str();
  if (!info_.device.is_cpu()) record["gpu"] = device_name(info_.device);
  record["threads"] = num_threads();
  record["blas"] = blas_description();
  record["lamina"] = LAMINA_VERSION;
  record["build"] = LAMINA_BUILD_TYPE;
  record["git"] = git_revision();
  if (!results.empty()) record["results"] = as_json(results);
  io::write_file_atomically(folder_ / "run.json", dump(record, 2) + "\n");
}

}  // namespace lamina::train
