#include "norm_grid/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "common/figure.h"

namespace lamina::norm_grid {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string norm;
  int64_t batch_size = 0;
  std::vector<Result> seeds;

  double mean(const char* value) const {
    double sum = 0;
    for (const Result& result : seeds) sum += result[value];
    return sum / static_cast<double>(seeds.size());
  }
  /// Of a single seed in a sample of them.
  double deviation(const char* value) const {
    double sum = 0;
    for (const Result& result : seeds) sum += (result[value] - mean(value)) * (result[value] - mean(value));
    return std::sqrt(sum / (static_cast<double>(seeds.size()) - 1));
  }
};

std::vector<Row> rows_of(const std::vector<Result>& results) {
  std::vector<Row> rows;
  for (const Result& result : results) {
    auto row =
        std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.norm == result.cell.norm && r.batch_size == result.cell.batch_size; });
    if (row == rows.end()) row = rows.insert(rows.end(), {result.cell.norm, result.cell.batch_size, {}});
    row->seeds.push_back(result);
  }
  return rows;
}

std::string table_of_errors(const std::vector<Row>& rows, size_t width) {
  std::string text = fmt::format("{:<{}} {:>10} {:>6} {:>7} {:>15} {:>16} {:>13} {:>10} {:>10}\n", "norm", width, "batch size", "seeds", "epochs",
                                 "best test err", "final test err", "train NLL", "s/epoch", "samples/s");
  for (const Row& row : rows)
    text += fmt::format("{:<{}} {:>10} {:>6} {:>7} {:>13.2f} % {:>14.2f} % {:>13.4g} {:>10.3g} {:>10}\n", row.norm, width, row.batch_size,
                        row.seeds.size(), row.seeds.front().epochs, row.mean("best_test_error") * 100, row.mean("final_test_error") * 100,
                        row.mean("final_train_nll"), row.mean("seconds_per_epoch"), train::format_count(row.mean("samples_per_second")));
  return text;
}

std::string table_of_accuracies(const std::vector<Row>& rows, size_t width) {
  std::string text = fmt::format("{:<{}} {:>10} {:>6} {:>7} {:>15} {:>17} {:>20} {:>10} {:>10}\n", "norm", width, "batch size", "seeds", "epochs",
                                 "training acc", "validation acc", "best validation acc", "train NLL", "s/epoch");
  const auto accuracy = [](const Row& row, const char* error) {
    return fmt::format("{:.2f}{} %", (1 - row.mean(error)) * 100,
                       row.seeds.size() > 1 ? fmt::format(" ± {:.2f}", row.deviation(error) * 100) : std::string());
  };
  for (const Row& row : rows)
    text += fmt::format("{:<{}} {:>10} {:>6} {:>7} {:>15} {:>17} {:>20} {:>10.3g} {:>10.3g}\n", row.norm, width, row.batch_size, row.seeds.size(),
                        row.seeds.front().epochs, accuracy(row, "final_training_error"), accuracy(row, "final_validation_error"),
                        accuracy(row, "best_validation_error"), row.mean("final_train_nll"), row.mean("seconds_per_epoch"));
  return text;
}

}  // namespace

std::string table(const Options& options, const std::vector<Result>& results) {
  const std::vector<Row> rows = rows_of(results);
  size_t width = 6;
  for (const Row& row : rows) width = std::max(width, row.norm.size());
  return options.comparison ? table_of_accuracies(rows, width) : table_of_errors(rows, width);
}

std::string json(const std::vector<Result>& results) {
  std::string runs;
  for (const Result& result : results) {
    train::Config run{{"norm", result.cell.norm}, {"batch_size", result.cell.batch_size}, {"seed", result.cell.seed}, {"epochs", result.epochs}};
    for (const auto& [name, value] : result.values) run.emplace_back(name, value);
    runs += (runs.empty() ? "" : ", ") + train::to_json(run);
  }
  return "{\"runs\": [" + runs + "]}";
}

std::string draw_figure(const Options& options) {
  const std::string out = fs::absolute(options.out).string();
  const std::string images = options.dataset == "cifar10" ? "CIFAR-10" : options.dataset == "fashion" ? "Fashion-MNIST" : "MNIST";
  if (options.comparison)
    return cli::draw_figure(
        "plot_norms.py", {"compare", out, "--out", out, "--title", fmt::format("{}, {} hidden layers of {}", images, options.depth, options.width)});
  std::string title = images + ", 784";
  for (const int64_t width : options.hidden) title += fmt::format("-{}", width);
  return cli::draw_figure("plot.py", {out, "--title", title + "-10"});
}

}  // namespace lamina::norm_grid
