#pragma once
// A small run with everything that a resume could forget: Adam, dropout, shuffling, batch norm, a schedule.

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <lamina/io/safetensors.h>
#include <lamina/nn/mlp.h>
#include <lamina/train/trainer.h>

#include "support/allclose.h"
#include "support/files.h"
#include "support/random.h"

namespace lamina::test {

/// `count` images of 4 x 4 pixels of 3 classes that can be learned: the class shows in which pixels are bright.
inline data::Dataset small_data(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint8_t> pixels;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < count; ++i) {
    labels.push_back(rng.below(3));
    for (int64_t p = 0; p < 16; ++p) pixels.push_back(static_cast<uint8_t>(rng.below(100) + (p % 3 == labels.back() ? 90 : 0)));
  }
  return {Tensor::from(pixels, {count, 4, 4}), Tensor::from(labels, {count})};
}

inline nn::Sequential small_model(const std::string& norm = "batch", double dropout = 0.2) {
  nn::Sequential model = nn::MLP({.sizes = {16, 12, 8, 3}, .norm = norm, .dropout = dropout});
  init(model, 3);
  return model;
}

/// One session of a run in a folder: made, perhaps resumed, run to `epochs`.
struct Session {
  nn::Sequential model;
  optim::Adam adam;
  data::Loader batches;
  train::Classification task;
  train::RunLog log;
  std::unique_ptr<train::Trainer> trainer;

  Session(const std::filesystem::path& folder, train::TrainerOptions options, const std::string& norm = "batch")
      : model(small_model(norm)),
        adam(model.parameters(), {.lr = 0.01}),
        batches(small_data(53, 1), {.batch_size = 8, .shuffle_seed = 5}),  // 53 = 6 * 8 + 5: a smaller last batch
        task(model, batches, {.device = device()}),
        log(folder, {.app = "test", .config = {{"norm", norm}, {"epochs", options.epochs}}, .may_change = {"epochs"}, .seed = 5}) {
    options.schedule = optim::Schedule::parse("warmup=3,cosine:200");
    options.folder = folder;
    options.log = &log;
    task.add_split("validation", small_data(21, 2));
    task.add_split("test", small_data(30, 3));
    trainer = std::make_unique<train::Trainer>(task, adam, std::move(options));
    if (std::filesystem::exists(folder / "last.safetensors")) trainer->resume(folder / "last.safetensors");
    log.start(trainer->state().step);
  }
};

/// metrics.csv without the column wall_s, which no two runs share.
inline std::string rows(const std::filesystem::path& folder) {
  std::string result;
  std::istringstream csv(support::get(folder / "metrics.csv"));
  for (std::string line; std::getline(csv, line);) {
    std::vector<std::string> fields;
    std::istringstream row(line);
    for (std::string field; std::getline(row, field, ',');) fields.push_back(field);
    REQUIRE(fields.size() == 6);
    result += fields[0] + "," + fields[1] + "," + fields[3] + "," + fields[4] + "," + fields[5] + "\n";
  }
  return result;
}

/// Whether two checkpoints hold the same tensors, bit for bit.
inline bool same_tensors(const std::filesystem::path& a, const std::filesystem::path& b) {
  const io::Safetensors x = io::read_safetensors(a), y = io::read_safetensors(b);
  if (x.tensors.size() != y.tensors.size() || x.tensors.empty()) return false;
  for (size_t i = 0; i < x.tensors.size(); ++i)
    if (x.tensors[i].first != y.tensors[i].first || !same_bits(x.tensors[i].second, y.tensors[i].second)) return false;
  return true;
}

}  // namespace lamina::test
