#include "train/train_state.h"

#include <lamina/core/parallel.h>
#include "core/format.h"

namespace lamina::train {
namespace {

// Calls visit(key, number) for every number of a state, in one place for both directions.
template <class State, class Visit>
void each_number(State& state, const Task& task, Visit&& visit) {
  visit("step", state.step);
  visit("epoch", state.epoch);
  visit("batch", state.batch);
  visit("loss.sum", state.loss.sum);
  visit("loss.count", state.loss.count);
  visit("train_" + task.loss_name(), state.train_loss);
  visit("samples", state.samples);
  visit("train_seconds", state.train_seconds);
  visit("wall_seconds", state.wall_seconds);
  for (auto& split : state.splits) {
    const std::string prefix = "split." + split.name + ".", lowest = prefix + "lowest_" + task.judged_by();
    for (auto& [name, value] : split.last.values) visit(prefix + name, value);
    visit(prefix + "count", split.last.count);
    visit(lowest, split.best.value);
    visit(lowest + ".step", split.best.step);
    visit(lowest + ".waited", split.best.waited);
  }
}

std::string names(const TrainState& state) {
  std::string text;
  for (const SplitRecord& split : state.splits) text += (text.empty() ? "" : ",") + split.name;
  return text;
}

const std::string& entry(const Metadata& metadata, const std::string& key, const std::filesystem::path& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail_input("trainer", "{}: not a checkpoint of a trainer ('{}' is missing in its metadata)", path.string(), key);
  return found->second;
}

}  // namespace

Metadata write_state(const TrainState& state, const Task& task) {
  Metadata metadata = task.describe();
  metadata["train.splits"] = names(state);
  each_number(state, task, [&](const std::string& key, auto value) { metadata["train." + key] = to_text(value); });
  return metadata;
}

TrainState read_state(const Metadata& metadata, const Task& task, const TrainState& here, const std::filesystem::path& path) {
  Metadata expected = task.describe();
  expected["train.splits"] = names(here);
  std::erase_if(expected,
                [&](const auto& entry) { return entry.first.ends_with("_crc32") && !metadata.contains(entry.first); });  // older checkpoints
  for (const auto& [key, value] : expected)
    if (entry(metadata, key, path) != value)
      fail_input("trainer", "{}: belongs to another run: {} is {} there, {} here", path.string(), key, entry(metadata, key, path), value);
  TrainState state = here;
  each_number(state, task, [&](const std::string& key, auto& value) {
    const std::string& text = entry(metadata, "train." + key, path);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      fail_input("trainer", "{}: damaged: train.{} is '{}', expected a number", path.string(), key, text);
  });
  if (state.step < 0 || state.epoch < 0 || state.batch < 0 || state.batch > task.batches())
    fail_input("trainer", "{}: damaged: step {}, epoch {}, batch {}", path.string(), state.step, state.epoch, state.batch);
  return state;
}

std::string machine_warning(const Metadata& metadata, const std::filesystem::path& path, const std::string& here) {
  const auto device = metadata.find("lamina.device");
  const std::string there = device == metadata.end() ? "cpu" : device->second;  // older checkpoints know nothing else
  if (there != here)
    return fmt::format("the run so far was on {}, now on {}: results will differ in the last digits from an uninterrupted run", there, here);
  if (here != "cpu") return "";
  const std::string threads = to_text(num_threads()), blas = blas_description();
  if (entry(metadata, "lamina.threads", path) != threads)
    return fmt::format("the run so far used {} threads, now {}: results will differ in the last digits from an uninterrupted run",
                       entry(metadata, "lamina.threads", path), threads);
  if (entry(metadata, "lamina.blas", path) != blas)
    return fmt::format("the run so far used {}, now {}: results will differ in the last digits from an uninterrupted run",
                       entry(metadata, "lamina.blas", path), blas);
  return "";
}

}  // namespace lamina::train
