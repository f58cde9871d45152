#pragma once
// What people and programs get at the end: a table, JSON, the figure.

#include <filesystem>
#include <string>
#include <vector>

#include "mnist_batchsize/run.h"

namespace lamina::mnist_batchsize {

/// One line per norm and batch size, means over the seeds.
std::string table(const std::vector<Result>& results);

/// {"runs": [...]}, one line.
std::string json(const std::vector<Result>& results);

/// Has scripts/plot.py draw OUT/figure.svg and OUT/figure.png. Returns "", or in one line why there is no figure.
std::string draw_figure(const Options& options);

}  // namespace lamina::mnist_batchsize
