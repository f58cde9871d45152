#pragma once
// What people and programs get at the end: a table, JSON, the figure.

#include <filesystem>
#include <string>
#include <vector>

#include "norm_grid/run.h"

namespace lamina::norm_grid {

/// One line per norm and batch size, means over the seeds; of a comparison with the deviation between seeds.
std::string table(const Options& options, const std::vector<Result>& results);

/// {"runs": [...]}, one line.
std::string json(const std::vector<Result>& results);

/// Has scripts/plot.py (plot_norms.py for a comparison) draw OUT/figure.svg and OUT/figure.png. Returns "", or in one line why there is no figure.
std::string draw_figure(const Options& options);

}  // namespace lamina::norm_grid
