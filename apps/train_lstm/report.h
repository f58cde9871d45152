#pragma once
// What people and programs get at the end of training: a table, JSON, the figure of a comparison.

#include <string>
#include <vector>

#include "train_lstm/run.h"

namespace lamina::train_lstm {

/// A line per norm.
std::string table(const std::vector<Result>& results);

/// {"runs": [...]}, one line.
std::string json(const std::vector<Result>& results);

}  // namespace lamina::train_lstm
