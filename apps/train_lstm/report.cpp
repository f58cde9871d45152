#include "train_lstm/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "common/run_folder.h"

namespace lamina::train_lstm {
namespace {

// "best_validation_error" as "best validation error".
std::string title(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string cell(const std::string& name, double value) {
  if (std::isnan(value)) return "-";
  if (name.ends_with("error")) return fmt::format("{:.2f} %", value * 100);
  if (name.ends_with("_per_second")) return train::format_count(value);
  if (name.ends_with("_seconds")) return train::format_duration(value);
  return fmt::format("{:.4g}", value);
}

}  // namespace

std::string table(const std::vector<Result>& results) {
  size_t width = 4;
  for (const Result& result : results) width = std::max(width, result.norm.size());
  std::string text = fmt::format("{:<{}}", "norm", width);
  for (const auto& [name, value] : results.front().values)
    if (name != "waited" && name != "epochs") text += fmt::format("  {}", title(name));
  for (const Result& result : results) {
    text += fmt::format("\n{:<{}}", result.norm, width);
    for (const auto& [name, value] : results.front().values)
      if (name != "waited" && name != "epochs")
        text += fmt::format("  {:>{}}",
                            name == "steps" || name == "best_step" ? fmt::format("{:.0f}", cli::number(result.values, name))
                                                                   : cell(name, cli::number(result.values, name)),
                            title(name).size());
  }
  return text + "\n";
}

std::string json(const std::vector<Result>& results) {
  std::string runs;
  for (const Result& result : results) {
    train::Config values{{"norm", result.norm}};
    values.insert(values.end(), result.values.begin(), result.values.end());
    runs += (runs.empty() ? "" : ", ") + train::to_json(values);
  }
  return "{\"runs\": [" + runs + "]}";
}

}  // namespace lamina::train_lstm
