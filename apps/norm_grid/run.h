#pragma once
// One run of the grid: from data and options to a finished run folder.

#include <filesystem>

#include <lamina/data/dataset.h>
#include <lamina/train/progress.h>
#include <lamina/train/trainer.h>

#include "norm_grid/options.h"

namespace lamina::norm_grid {

struct Data {
  data::Dataset train, validation;
  data::Dataset second;                // evaluated too: the test images or, for a comparison, the training images
  double scale = 1.0 / 255, mean = 0;  // pixel p enters as p * scale - mean
};
Data load_data(const Options& options);

struct Result {
  Cell cell;
  int64_t epochs = 0;
  /// best_test_error (the lowest of all evaluations) and final_test_error or, of a comparison, best_validation_error, final_validation_error and
  /// final_training_error (of the weights at the end); final_train_nll (of the batches of the last epoch, each at the weights that it met);
  /// seconds_per_epoch (in training steps alone, without evaluation and saving) and samples_per_second.
  std::vector<std::pair<std::string, double>> values;

  double operator[](std::string_view name) const;
};

/// What the cell's folder says when its run is finished and has as many epochs as asked for; nothing when it must be run. Throws InputError when the
/// folder holds another run, a run on other data, or a run at all without --resume.
std::optional<Result> finished_result(const Options& options, const Data& data, const Cell& cell);

/// Trains, from the last checkpoint on if there is one. Nothing when a signal stopped it: it is saved.
std::optional<Result> run_cell(const Options& options, const Data& data, const Cell& cell, train::Progress& progress);

}  // namespace lamina::norm_grid
