#pragma once
// Weights and checkpoints as safetensors files with PyTorch's names and layouts.
// A checkpoint holds "model.<path>" (parameters and buffers, so also the positions of random streams), "optim.<name>", "state.<name>" (what a task
// carries from batch to batch), and text metadata. It is written whole or not at all, with a checksum; loading checks everything and then applies
// everything, or throws InputError and changes nothing.

#include <filesystem>
#include <map>
#include <string>

#include <lamina/io/safetensors.h>
#include <lamina/nn/module.h>
#include <lamina/optim/optimizer.h>

namespace lamina::train {

using Metadata = std::map<std::string, std::string>;

/// "Sequential; 0 Linear(784 -> 10); ...": path and description of each module; what a checkpoint says it belongs to.
std::string architecture(nn::Module& model);

/// "cpu" or "cuda": where the model's first parameter is; what a checkpoint says it was written on.
std::string device_kind(nn::Module& model);

/// The model under plain names as torch.nn.Module.state_dict() has them; with an optimiser, its state too, as "optim.<name>". What
/// scripts/pytorch_checkpoint.py reads and writes on PyTorch's side.
void save_weights(const std::filesystem::path& path, nn::Module& model, const Metadata& metadata = {}, const optim::Optimizer* optimizer = nullptr);
/// Takes the weights out of a checkpoint too. With an optimiser the file must hold its state; without one, such state in the file is passed over.
/// Checks everything first. Throws InputError naming the file, the tensor, and both shapes where they differ.
void load_weights(const std::filesystem::path& path, nn::Module& model, optim::Optimizer* optimizer = nullptr);

/// Model, optimiser, a task's state and `metadata` (keys beginning with "lamina." are reserved). Throws Error, and writes nothing, when a parameter
/// or buffer is not finite: what is on the disk stays usable.
void save_checkpoint(const std::filesystem::path& path, nn::Module& model, const optim::Optimizer& optimizer, const Metadata& metadata = {},
                     const nn::StateDict& state = {});
/// The task's state in a checkpoint.
nn::StateDict checkpoint_state(const io::Safetensors& content);
/// Loads model and optimiser. Returns the metadata. Throws InputError for what is not a checkpoint, is damaged or has lost its checksum, is of a
/// later format, or belongs to another architecture or optimiser.
Metadata load_checkpoint(const std::filesystem::path& path, nn::Module& model, optim::Optimizer& optimizer);

/// Throws Error naming the first parameter or buffer of the model with a value that is not finite.
void require_finite(nn::Module& model);

}  // namespace lamina::train
