// Table 1 of "Layer Normalization" (Ba, Kiros, Hinton 2016), measured for every normaliser beside what the papers say; and the implicit learning
// rate.
//   norm_table                  two tables; exit code 1 if a cell disagrees
//   norm_table --json           the same for machines
//   norm_table --eps 1e-5       how far a usual eps is from the limit that the tables speak of
//   norm_table --out DIR        also a heat map: DIR/norm_table.svg and .png

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lamina/io/file.h>

#include "common/cli.h"
#include "common/figure.h"
#include "norm_table/measure.h"

namespace lamina::norm_table {
namespace {

struct Options {
  Settings settings;
  cli::Machine machine;
  std::string out;
  bool json = false;
};

std::optional<Options> parse_options(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Measures which changes of weights and data each normaliser hides (table 1 of \"Layer Normalization\", Ba, Kiros, Hinton 2016), and how "
      "growing\n"
      "weights slow their own learning (its section 5.2), on one layer without Linear bias, with random weights, gains, biases and data, in f64.",
      "norm_table");
  cli::set_up(app);
  app.footer("Exit codes: 0 all cells agree, 1 some do not (with an eps as large as 1e-5 most do not), 2 bad usage or input.");
  app.add_option("--eps", o.settings.eps, "Of the normalisers; the tables speak of the limit 0")->type_name("X")->check(cli::from_to(0, 1));
  app.add_option("--factor", o.settings.factor, "What is re-scaled is multiplied by this")->type_name("X")->check(cli::from_to(0.001, 1000));
  app.add_option("--seed", o.settings.seed, "Of weights, gains, biases and data")->type_name("N")->transform(cli::whole_at_least(0));
  app.add_option("--out", o.out, "Write norm_table.json, .svg and .png (a heat map; needs python3 with matplotlib) to this folder")->type_name("DIR");
  app.add_flag("--json", o.json, "Print one line of JSON instead of the tables");
  cli::add_machine(app, o.machine, "Machine");
  if (!cli::parse(app, argc, argv)) return std::nullopt;
  // Nearer to 1 it changes too little for a clear no. (1 - 0.9 is below 0.1 by rounding.)
  if (std::abs(o.settings.factor - 1) < 0.1 - 1e-12)
    throw InputError(fmt::format("--factor: expected a value at least 0.1 from 1, got {}", o.settings.factor));
  o.settings.device = cli::choose_device("norm_table", o.machine);
  return o;
}

const char* yes(bool on) { return on ? "yes" : "no"; }

void print(const std::vector<Row>& rows) {
  fmt::print(
      "Does the normalised layer give the same output?  Measured: yes or no, and the largest deviation relative to the largest output.\n"
      "In brackets: the answer of the source in the last column.\n\n{:<17}",
      "");
  for (const Change& change : changes) fmt::print("{:<18}", change.what);
  fmt::print("\n{:<17}", "normaliser");
  for (const Change& change : changes) fmt::print("{:<18}", change.done);
  fmt::print("source\n");
  for (const Row& row : rows) {
    fmt::print("{:<17}", row.norm);
    for (const Cell& cell : row.cells)
      fmt::print("{:<18}", fmt::format("{} {:.0e} ({}){}", yes(cell.measured()), cell.deviation, yes(cell.expected), cell.agrees() ? "" : " !!"));
    fmt::print("{}\n", row.source);
  }
}

void print(const std::vector<Growth>& rows) {
  fmt::print(
      "\nThe implicit learning rate: weights s times as large. Where the normaliser hides s, outputs stay, the weights' gradient is 1/s as long, and "
      "one\n"
      "SGD step turns the weights by 1/s^2 of the angle.\n\n{:<17}{:>5}  {:<16} {:<22} {:<22}\n",
      "normaliser", "s", "outputs change", "gradient length x s", "angle x s^2");
  for (const Growth& row : rows)
    fmt::print("{:<17}{:>5}  {:<16.0e} {:<22.10g} {:<22.8g}{}{}\n", row.norm, row.scale, row.deviation, row.gradient_ratio * row.scale,
               row.turn_ratio * row.scale * row.scale, row.invariant ? "" : "s is not hidden", row.agrees() ? "" : " !!");
}

nlohmann::ordered_json as_json(const Settings& settings, const std::vector<Row>& rows, const std::vector<Growth>& growths, bool agree) {
  nlohmann::ordered_json result{{"eps", settings.eps}, {"factor", settings.factor}, {"seed", settings.seed}, {"agrees", agree}};
  for (const Row& row : rows)
    for (size_t i = 0; i < changes.size(); ++i)
      result["invariance"].push_back({{"norm", row.norm},
                                      {"change", changes[i].name},
                                      {"deviation", row.cells[i].deviation},
                                      {"measured", row.cells[i].measured()},
                                      {"expected", row.cells[i].expected},
                                      {"source", row.source},
                                      {"agrees", row.cells[i].agrees()}});
  for (const Growth& row : growths)
    result["implicit_learning_rate"].push_back({{"norm", row.norm},
                                                {"scale", row.scale},
                                                {"hidden", row.invariant},
                                                {"deviation", row.deviation},
                                                {"gradient_ratio", row.gradient_ratio},
                                                {"turn_ratio", row.turn_ratio},
                                                {"agrees", row.agrees()}});
  return result;
}

int main(int argc, char** argv) {
  const std::optional<Options> options = parse_options(argc, argv);
  if (!options) return 0;
  if (!options->out.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options->out, error);
    if (error) throw InputError(fmt::format("--out: cannot make the folder {}: {}", options->out, error.message()));
  }
  const std::vector<Row> rows = invariances(options->settings);
  const std::vector<Growth> growing = growths(options->settings);
  int disagreeing = 0;
  for (const Row& row : rows) disagreeing += static_cast<int>(std::count_if(row.cells.begin(), row.cells.end(), [](auto& c) { return !c.agrees(); }));
  disagreeing += static_cast<int>(std::count_if(growing.begin(), growing.end(), [](auto& row) { return !row.agrees(); }));
  const std::string json = as_json(options->settings, rows, growing, disagreeing == 0).dump();
  if (options->json) {
    fmt::print("{}\n", json);
  } else {
    print(rows);
    print(growing);
    fmt::print("\n{}\n", disagreeing == 0 ? "Every cell agrees." : fmt::format("{} cells, marked !!, do not agree.", disagreeing));
  }
  if (!options->out.empty()) {
    const std::string path = (std::filesystem::path(options->out) / "norm_table.json").string();
    io::write_file_atomically(path, json + "\n");
    if (const std::string problem = cli::draw_figure("plot_norms.py", {"table", path, "--out", options->out}); !problem.empty())
      fmt::print(stderr, "norm_table: no figure: {}\n", problem);
  }
  return disagreeing == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lamina::norm_table

int main(int argc, char** argv) {
  return lamina::cli::run("norm_table", [&] { return lamina::norm_table::main(argc, argv); });
}
