#include "train/train_state.h"

#include <charconv>

#include <lamina/core/parallel.h>
#include "core/format.h"

namespace lamina::train {
namespace {

template <class T>
std::string to_text(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// Calls visit(key, number) for every number of a state, in one place for both directions.
template <class State, class Visit>
void each_number(State& state, Visit&& visit) {
  visit("step", state.step);
  visit("epoch", state.epoch);
  visit("batch", state.batch);
  visit("loss.sum", state.loss.sum);
  visit("loss.count", state.loss.count);
  visit("train_nll", state.train_nll);
  visit("samples", state.samples);
  visit("train_seconds", state.train_seconds);
  visit("wall_seconds", state.wall_seconds);
  for (auto& split : state.splits) {
    visit("split." + split.name + ".nll", split.last.nll);
    visit("split." + split.name + ".error", split.last.error);
    visit("split." + split.name + ".count", split.last.count);
    visit("split." + split.name + ".lowest_error", split.lowest_error.value);
    visit("split." + split.name + ".lowest_error.step", split.lowest_error.step);
    visit("split." + split.name + ".lowest_error.waited", split.lowest_error.waited);
  }
}

// What the batches are made of; a checkpoint of other batches is another run.
Metadata describe(const data::Loader& batches) {
  const data::LoaderOptions& options = batches.options();
  return {{"data.examples", to_text(batches.dataset().size())},
          {"data.examples_crc32", fmt::format("{:08x}", batches.data_checksum())},
          {"data.batch_size", to_text(options.batch_size)},
          {"data.shuffle", options.shuffle ? "true" : "false"},
          {"data.shuffle_seed", to_text(options.shuffle_seed)},
          {"data.drop_last", options.drop_last ? "true" : "false"},
          {"data.scale", to_text(options.scale)},
          {"data.mean", to_text(options.mean)}};
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

Metadata write_state(const TrainState& state, const data::Loader& batches) {
  Metadata metadata = describe(batches);
  metadata["train.splits"] = names(state);
  each_number(state, [&](const std::string& key, auto value) { metadata["train." + key] = to_text(value); });
  return metadata;
}

TrainState read_state(const Metadata& metadata, const data::Loader& batches, const TrainState& here, const std::filesystem::path& path) {
  Metadata expected = describe(batches);
  expected["train.splits"] = names(here);
  if (!metadata.contains("data.examples_crc32")) expected.erase("data.examples_crc32");  // written before there was one
  for (const auto& [key, value] : expected)
    if (entry(metadata, key, path) != value)
      fail_input("trainer", "{}: belongs to another run: {} is {} there, {} here", path.string(), key, entry(metadata, key, path), value);
  TrainState state = here;
  each_number(state, [&](const std::string& key, auto& value) {
    const std::string& text = entry(metadata, "train." + key, path);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      fail_input("trainer", "{}: damaged: train.{} is '{}', expected a number", path.string(), key, text);
  });
  if (state.step < 0 || state.epoch < 0 || state.batch < 0 || state.batch > trained_batches(batches))
    fail_input("trainer", "{}: damaged: step {}, epoch {}, batch {}", path.string(), state.step, state.epoch, state.batch);
  return state;
}

std::string thread_warning(const Metadata& metadata, const std::filesystem::path& path) {
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
