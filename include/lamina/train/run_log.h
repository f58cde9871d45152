#pragma once
// What a run leaves in its folder: run.json (what was run, on what, how it ended) and metrics.csv (one row per value).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <lamina/core/device.h>
#include <lamina/io/file.h>

namespace lamina::train {

using ConfigValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
/// Names and values, in order. Doubles that are not finite become null in JSON.
using Config = std::vector<std::pair<std::string, ConfigValue>>;

/// The value as JSON text.
std::string to_json(const ConfigValue& value);
std::string to_json(const Config& config);

/// What identifies a run.
struct RunInfo {
  std::string app = {};                      // name of the program
  Config config = {};                        // every option in effect
  std::vector<std::string> may_change = {};  // options that another session of the same run may set anew: number of epochs, paths, ...
  uint64_t seed = 0;
  Device device = Device::cpu();
};

/// What a run folder says about the run in it.
struct PastRun {
  std::string status;  // "running" (or killed), "interrupted", "finished", "failed: ..."
  Config results;      // as given to RunLog::finish; null as NaN
};

/// The run in `folder`, or nothing where there is none. Throws InputError, with one line, when the folder holds another run (a config value differs
/// that is not in may_change: the first one is named), when run.json is damaged, or when there are results without a run.json. Changes nothing.
std::optional<PastRun> find_run(const std::filesystem::path& folder, const RunInfo& info);

/// A row of metrics.csv: header "step,epoch,wall_s,split,metric,value".
struct MetricRow {
  int64_t step;        // optimiser steps done
  double epoch;        // epochs done; whole at the end of an epoch
  double wall_s;       // seconds of the run so far, all sessions together
  std::string split;   // "train", "validation", "test"
  std::string metric;  // "nll", "error"
  double value;        // written so that it reads back exactly
};

class RunLog {
 public:
  /// Makes the folder (and those above it) and takes it for this process. Throws InputError when it cannot be made, another process works in it, or
  /// find_run() throws.
  RunLog(std::filesystem::path folder, RunInfo info);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

  /// Writes run.json with status "running" and opens metrics.csv. `step` is where the run starts: 0, or the step of the checkpoint it continues from.
  /// Rows past it are dropped, with any line cut short by a crash. Throws InputError when the folder cannot be written.
  void start(int64_t step = 0);
  /// Appends rows, all in one write, so that a killed process leaves whole lines. Throws InputError when the disk is full.
  void append(const std::vector<MetricRow>& rows);
  /// Waits until the rows are on the disk; before a checkpoint that counts on them.
  void sync();
  /// Writes how the run ended into run.json.
  void finish(const std::string& status, const Config& results = {});

 private:
  void write_record(const std::string& status, const Config& results);

  std::filesystem::path folder_;
  RunInfo info_;
  std::string started_;
  int lock_ = -1;
  std::optional<io::OutputFile> metrics_;
};

/// Revision of lamina's source tree ("0123456789ab", with "+dirty" where files differ), or "unknown".
std::string git_revision();

}  // namespace lamina::train
