#include "mnist_batchsize/report.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/figure.h"

namespace lamina::mnist_batchsize {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string norm;
  int64_t batch_size = 0;
  std::vector<Result> seeds;

  double mean(double Result::*field) const {
    double sum = 0;
    for (const Result& result : seeds) sum += result.*field;
    return sum / static_cast<double>(seeds.size());
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

}  // namespace

std::string table(const std::vector<Result>& results) {
  const std::vector<Row> rows = rows_of(results);
  size_t width = 6;
  for (const Row& row : rows) width = std::max(width, row.norm.size());
  std::string text = fmt::format("{:<{}} {:>10} {:>6} {:>7} {:>15} {:>16} {:>13} {:>10} {:>10}\n", "norm", width, "batch size", "seeds", "epochs",
                                 "best test err", "final test err", "train NLL", "s/epoch", "samples/s");
  for (const Row& row : rows)
    text += fmt::format("{:<{}} {:>10} {:>6} {:>7} {:>13.2f} % {:>14.2f} % {:>13.4g} {:>10.3g} {:>10}\n", row.norm, width, row.batch_size,
                        row.seeds.size(), row.seeds.front().epochs, row.mean(&Result::best_test_error) * 100,
                        row.mean(&Result::final_test_error) * 100, row.mean(&Result::final_train_nll), row.mean(&Result::seconds_per_epoch),
                        train::format_count(row.mean(&Result::samples_per_second)));
  return text;
}

std::string json(const std::vector<Result>& results) {
  std::string runs;
  for (const Result& result : results)
    runs += (runs.empty() ? "" : ", ") + train::to_json(train::Config{{"norm", result.cell.norm},
                                                                      {"batch_size", result.cell.batch_size},
                                                                      {"seed", result.cell.seed},
                                                                      {"epochs", result.epochs},
                                                                      {"best_test_error", result.best_test_error},
                                                                      {"final_test_error", result.final_test_error},
                                                                      {"final_train_nll", result.final_train_nll},
                                                                      {"seconds_per_epoch", result.seconds_per_epoch},
                                                                      {"samples_per_second", result.samples_per_second}});
  return "{\"runs\": [" + runs + "]}";
}

std::string draw_figure(const Options& options) {
  std::string title = options.dataset == "fashion" ? "Fashion-MNIST, 784" : "MNIST, 784";
  for (const int64_t width : options.hidden) title += fmt::format("-{}", width);
  return cli::draw_figure("plot.py", {fs::absolute(options.out).string(), "--title", title + "-10"});
}

}  // namespace lamina::mnist_batchsize
