#pragma once
// The state of a training run as text in a checkpoint's metadata. Numbers read back exactly.

#include <filesystem>
#include <string>

#include <lamina/train/trainer.h>

namespace lamina::train {

Metadata write_state(const TrainState& state, const data::Loader& batches);

/// Throws InputError when the metadata is incomplete, or speaks of other data, another batch size, another shuffle seed, or other splits than `here`
/// has.
TrainState read_state(const Metadata& metadata, const data::Loader& batches, const TrainState& here, const std::filesystem::path& path);

/// A warning when the checkpoint was written with another thread count or another BLAS, else "".
std::string thread_warning(const Metadata& metadata, const std::filesystem::path& path);

}  // namespace lamina::train
