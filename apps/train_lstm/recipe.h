#pragma once
// What a checkpoint says about its model: all that it takes to build it and to feed it.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lamina/train/checkpoint.h>
#include <lamina/train/sequence_model.h>

namespace lamina::train_lstm {

struct Recipe {
  std::string task;

  std::string cell, norm, init;
  int64_t layers = 1, hidden = 0, inputs = 0, outputs = 0, embedding = 0;
  int64_t max_steps = 0;  // the longest sequence, for batch norm
  bool bidirectional = false;
  double dropout = 0, state_noise = 0;
  std::optional<double> forget_bias, gain;

  std::string vocabulary;         // text: Vocabulary::str()
  int64_t streams = 0, bptt = 0;  // text
  int64_t permute = 0;            // pixels
  int64_t length = 0;             // adding, copy
  std::string id, classify;       // csv, and so are the rest
  std::vector<std::string> regress, ignore, columns, classes;
  std::vector<double> input_mean, input_scale, target_mean, target_scale;  // standardised = (value - mean) / scale
};

/// As a checkpoint's metadata holds it.
train::Metadata to_metadata(const Recipe& recipe);

train::SequenceModelOptions model_options(const Recipe& recipe);

struct Loaded {
  Recipe recipe;
  std::unique_ptr<train::SequenceModel> model;  // in evaluation mode
};
/// From a run's last.safetensors or best.safetensors. Throws InputError with the file's name for anything else.
Loaded load_model(const std::filesystem::path& path);

}  // namespace lamina::train_lstm
