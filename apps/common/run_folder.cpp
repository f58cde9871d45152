#include "common/run_folder.h"

#include <cmath>

#include <fmt/format.h>

#include <lamina/core/error.h>
#include <lamina/io/safetensors.h>

namespace lamina::cli {

namespace fs = std::filesystem;

double number(const train::Config& results, const std::string& name) {
  for (const auto& [key, value] : results) {
    if (key != name) continue;
    if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
    if (const auto* real = std::get_if<double>(&value)) return *real;
  }
  return std::nan("");
}

void check_checkpoint(const fs::path& folder, const std::string& status) {
  const fs::path checkpoint = folder / "last.safetensors";
  if (fs::exists(checkpoint))
    io::read_safetensors(checkpoint);                        // throws where it is damaged
  else if (status == "finished" || status == "interrupted")  // without a checkpoint it starts anew, which is right only when it never came to one
    throw InputError(fmt::format("{}: this run is {}, but its last.safetensors is missing, so it cannot go on; remove the folder to start it anew",
                                 folder.string(), status));
}

void continue_run(train::Trainer& trainer, const fs::path& folder, train::Progress& progress) {
  const fs::path checkpoint = folder / "last.safetensors";
  if (!fs::exists(checkpoint)) return;
  const std::string warning = trainer.resume(checkpoint);
  progress.line(fmt::format("continued from step {}, epoch {}", trainer.state().step, trainer.state().epoch + 1));
  if (!warning.empty()) progress.line("warning: " + warning);
}

bool fit(train::Trainer& trainer, train::RunLog& log, train::Progress& progress, const std::function<train::Config(train::Outcome)>& results) {
  try {
    const train::Outcome outcome = trainer.fit();
    if (outcome == train::Outcome::interrupted) {
      log.finish("interrupted");
      progress.line(fmt::format("stopped at step {}, epoch {}, and saved; the same command with --resume continues", trainer.state().step,
                                trainer.state().epoch + 1));
      return false;
    }
    log.finish("finished", results(outcome));
    return true;
  } catch (const std::exception& error) {
    try {
      log.finish(fmt::format("failed: {}", error.what()));
    } catch (const Error&) {  // e.g. the disk is full: the first error is the one to report
    }
    throw;
  }
}

}  // namespace lamina::cli
