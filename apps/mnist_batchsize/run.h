#pragma once
// One run of the grid: from data and options to a finished run folder.

#include <filesystem>

#include <lamina/data/dataset.h>
#include <lamina/train/progress.h>
#include <lamina/train/trainer.h>

#include "mnist_batchsize/options.h"

namespace lamina::mnist_batchsize {

struct Data {
  data::Dataset train, validation, test;
  double scale = 1.0 / 255, mean = 0;  // pixel p enters as p * scale - mean
};
Data load_data(const Options& options);

struct Result {
  Cell cell;
  int64_t epochs = 0;
  double best_test_error = 0;  // the lowest of all evaluations
  double final_test_error = 0;
  double final_train_nll = 0;
  double seconds_per_epoch = 0;  // in training steps alone, without evaluation and saving
  double samples_per_second = 0;
};

/// What the cell's folder says when its run is finished and has as many epochs as asked for; nothing when it must be run. Throws InputError when the
/// folder holds another run, or a run at all without --resume.
std::optional<Result> finished_result(const Options& options, const Cell& cell);

/// Trains, from the last checkpoint on if there is one. Nothing when a signal stopped it: it is saved.
std::optional<Result> run_cell(const Options& options, const Data& data, const Cell& cell, train::Progress& progress);

}  // namespace lamina::mnist_batchsize
