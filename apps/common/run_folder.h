#pragma once
// A run and its folder: whether there is one already, going on from its checkpoint, and how it ended.

#include <filesystem>
#include <functional>
#include <string>

#include <lamina/train/progress.h>
#include <lamina/train/run_log.h>
#include <lamina/train/trainer.h>

namespace lamina::cli {

/// A number among the results of a past run; NaN where there is none of that name.
double number(const train::Config& results, const std::string& name);

/// Throws InputError when an unfinished run cannot go on: its checkpoint is damaged, or gone though it had one.
void check_checkpoint(const std::filesystem::path& folder, const std::string& status);

/// Goes on from the folder's last.safetensors if there is one, and says so.
void continue_run(train::Trainer& trainer, const std::filesystem::path& folder, train::Progress& progress);

/// Trains, and writes into run.json how it ended: "finished" with `results`, "interrupted", or "failed: ..." where something throws. Returns whether
/// it finished.
bool fit(train::Trainer& trainer, train::RunLog& log, train::Progress& progress, const std::function<train::Config(train::Outcome)>& results);

}  // namespace lamina::cli
