#pragma once
// One training run: from data and options to a finished run folder.

#include <filesystem>
#include <optional>
#include <string>

#include <lamina/train/progress.h>
#include <lamina/train/run_log.h>

#include "train_lstm/data.h"
#include "train_lstm/options.h"

namespace lamina::train_lstm {

struct Result {
  std::string norm;
  train::Config values;  // as in run.json: "steps", "train_nll", "best_validation_error", "test_error", "train_seconds", "characters_per_second", ...
};

/// OUT, or OUT/<norm> of a comparison.
std::filesystem::path folder_of(const Options& options, const std::string& norm);

/// The result in the run's folder when it is finished and as long as asked for; nothing when it must be run. Throws InputError when the folder holds
/// another run, or a run at all without --resume.
std::optional<Result> finished_result(const Options& options, const Data& data, const std::string& norm);

/// Trains, from the last checkpoint on if there is one. Nothing when a signal stopped it: it is saved.
std::optional<Result> run(const Options& options, const Data& data, const std::string& norm, train::Progress& progress);

}  // namespace lamina::train_lstm
