#pragma once
// The data of each task, as what a trainer trains on.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lamina/data/csv.h>
#include <lamina/data/text.h>
#include <lamina/train/sequence_task.h>
#include <lamina/train/task.h>

#include "train_lstm/options.h"
#include "train_lstm/recipe.h"

namespace lamina::train_lstm {

/// Data that is loaded once and trained on with each norm.
struct Data {
  Recipe recipe;            // all but the norm
  int64_t batches = 0;      // of an epoch
  std::string description;  // for people
  std::function<std::unique_ptr<train::Task>(train::SequenceModel& model)> make_task;
};
Data load_data(const Options& options);

/// Named splits and what to evaluate them with, for --eval.
using Evaluations = std::vector<std::pair<std::string, std::function<train::Scores(train::SequenceModel&)>>>;
Evaluations load_evaluations(const Options& options, const Recipe& recipe);

/// Images [N, 784] as the sequences that the recipe's task makes of them, [T, N, C].
Tensor image_sequences(const Recipe& recipe, const Tensor& images);

/// A CSV file read with what a model knows of its columns, and standardised; with targets or without.
data::CsvSequences read_known(const std::string& path, const Recipe& recipe, bool with_targets);

}  // namespace lamina::train_lstm
