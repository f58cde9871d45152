#pragma once
// The state of a training run as text in a checkpoint's metadata. Numbers read back exactly.

#include <charconv>
#include <filesystem>
#include <string>

#include <lamina/train/trainer.h>

namespace lamina::train {

/// A number as text that reads back exactly.
template <class T>
std::string to_text(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

/// Where a task's description holds the checksum of a split's data.
inline std::string split_key(const std::string& split) { return "data." + split + "_crc32"; }

Metadata write_state(const TrainState& state, const Task& task);

/// Throws InputError when the metadata is incomplete, or describes another task (other data, another batch size, ...) or other splits than `task`
/// has.
TrainState read_state(const Metadata& metadata, const Task& task, const TrainState& here, const std::filesystem::path& path);

/// A warning when the checkpoint was written with another thread count or another BLAS, or on another kind of device than `here`, else "".
std::string machine_warning(const Metadata& metadata, const std::filesystem::path& path, const std::string& here);

}  // namespace lamina::train
