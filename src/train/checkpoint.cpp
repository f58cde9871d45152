#include <lamina/train/checkpoint.h>

#include <algorithm>
#include <iterator>

#include <lamina/core/parallel.h>
#include <lamina/io/safetensors.h>
#include <lamina/ops/reduce.h>
#include "core/format.h"

namespace lamina::train {
namespace {

constexpr int format_version = 1;
constexpr const char *checkpoint_key = "lamina.checkpoint", *model_prefix = "model.", *optimizer_prefix = "optim.", *state_prefix = "state.";

void require_finite(const char* what, const std::string& path, const Tensor& tensor) {
  if (is_float(tensor.dtype()) && !all_finite(tensor)) fail("checkpoint", "the {} {} holds values that are not finite; not saved", what, path);
}

const std::string& entry(const Metadata& metadata, const std::string& key, const std::filesystem::path& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail_input("checkpoint", "{}: not a checkpoint of lamina ('{}' is missing in its metadata)", path.string(), key);
  return found->second;
}

/// Reads a file; a checkpoint must have its checksum, or damage to the checksum's own name would turn it off.
io::Safetensors read(const std::filesystem::path& path) {
  io::Safetensors content = io::read_safetensors(path);
  if (content.metadata.contains(checkpoint_key) && !content.checked)
    fail_input("checkpoint", "{}: no checksum in its metadata (the file is damaged, or was rewritten by another program)", path.string());
  return content;
}

nn::StateDict copy_of(const nn::StateDict& state) {
  nn::StateDict copy;
  for (const auto& [name, tensor] : state) copy.emplace_back(name, tensor.clone());
  return copy;
}

void append(nn::StateDict& tensors, const std::string& prefix, const nn::StateDict& more) {
  for (const auto& [name, tensor] : more) tensors.emplace_back(prefix + name, tensor);
}

nn::StateDict with_prefix(const std::string& prefix, const nn::StateDict& tensors) {
  nn::StateDict result;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(prefix)) result.emplace_back(name.substr(prefix.size()), tensor);
  return result;
}

/// Both or neither: the model's own loading, which is all or nothing, comes last.
void load_together(const std::filesystem::path& path, nn::Module& model, const nn::StateDict& weights, optim::Optimizer* optimizer,
                   const nn::StateDict& moments) {
  const nn::StateDict before = optimizer ? copy_of(optimizer->state()) : nn::StateDict();
  try {
    if (optimizer) optimizer->load_state(moments);
    model.load_state_dict(weights);
  } catch (const InputError& error) {
    if (optimizer) optimizer->load_state(before);
    fail_input("checkpoint", "{}: {}", path.string(), error.what());
  }
}

void require_shapes(nn::Module& model, const nn::StateDict& weights, const std::filesystem::path& path) {
  for (const auto& [name, here] : model.state_dict())
    for (const auto& [their_name, theirs] : weights)
      if (name == their_name && here.shape() != theirs.shape())
        fail_input("checkpoint", "{}: {}: expected {}, got {} (another architecture)", path.string(), name, here.shape(), theirs.shape());
}

// Compares descriptions module by module, to name the first that differs.
void require_architecture(const std::string& theirs, const std::string& here, const std::filesystem::path& path) {
  if (theirs == here) return;
  const auto differ = static_cast<size_t>(std::ranges::mismatch(theirs, here).in1 - theirs.begin());
  const auto module_at = [differ](const std::string& text) {
    const size_t before = text.rfind("; ", differ), begin = before == std::string::npos ? 0 : before + 2;
    return begin >= text.size() ? "nothing more" : "'" + text.substr(begin, text.find("; ", begin) - begin) + "'";
  };
  fail_input("checkpoint", "{}: written by another architecture: {} there, {} here", path.string(), module_at(theirs), module_at(here));
}

}  // namespace

nn::StateDict checkpoint_state(const io::Safetensors& content) { return with_prefix(state_prefix, content.tensors); }

void require_finite(nn::Module& model) {
  for (const auto& [path, parameter] : model.named_parameters()) require_finite("parameter", path, parameter->tensor());
  for (const auto& [path, buffer] : model.named_buffers()) require_finite("buffer", path, buffer->tensor());
}

std::string device_kind(nn::Module& model) {
  const std::vector<nn::Parameter*> parameters = model.parameters();
  return parameters.empty() || parameters[0]->tensor().device().is_cpu() ? "cpu" : "cuda";
}

std::string architecture(nn::Module& model) {
  std::string text;
  for (const auto& [path, module] : model.modules()) text += (text.empty() ? "" : "; ") + path + (path.empty() ? "" : " ") + module->describe();
  return text;
}

void save_weights(const std::filesystem::path& path, nn::Module& model, const Metadata& metadata, const optim::Optimizer* optimizer) {
  require_finite(model);
  nn::StateDict tensors = model.state_dict();
  if (optimizer) append(tensors, optimizer_prefix, optimizer->state());
  io::write_safetensors(path, {tensors, metadata});
}

void load_weights(const std::filesystem::path& path, nn::Module& model, optim::Optimizer* optimizer) {
  const io::Safetensors content = read(path);
  nn::StateDict weights, moments = with_prefix(optimizer_prefix, content.tensors);
  if (content.metadata.contains(checkpoint_key))
    weights = with_prefix(model_prefix, content.tensors);
  else
    std::ranges::copy_if(content.tensors, std::back_inserter(weights), [](const auto& entry) { return !entry.first.starts_with(optimizer_prefix); });
  if (optimizer && moments.empty()) fail_input("checkpoint", "{}: holds no state of an optimiser", path.string());
  load_together(path, model, weights, optimizer, moments);
}

void save_checkpoint(const std::filesystem::path& path, nn::Module& model, const optim::Optimizer& optimizer, const Metadata& metadata,
                     const nn::StateDict& state) {
  require_finite(model);
  io::Safetensors content{{}, metadata};
  append(content.tensors, model_prefix, model.state_dict());
  append(content.tensors, optimizer_prefix, optimizer.state());
  append(content.tensors, state_prefix, state);
  content.metadata[checkpoint_key] = std::to_string(format_version);
  content.metadata["lamina.architecture"] = architecture(model);
  content.metadata["lamina.threads"] = std::to_string(num_threads());
  content.metadata["lamina.blas"] = blas_description();
  content.metadata["lamina.device"] = device_kind(model);
  io::write_safetensors(path, content);
}

Metadata load_checkpoint(const std::filesystem::path& path, nn::Module& model, optim::Optimizer& optimizer) {
  const io::Safetensors content = read(path);
  const std::string& version = entry(content.metadata, checkpoint_key, path);
  if (version != std::to_string(format_version))
    fail_input("checkpoint", "{}: format version: expected {}, got {} (written by another lamina)", path.string(), format_version, version);
  const nn::StateDict weights = with_prefix(model_prefix, content.tensors), moments = with_prefix(optimizer_prefix, content.tensors);
  for (const auto& [name, tensor] : content.tensors)
    if (!name.starts_with(model_prefix) && !name.starts_with(optimizer_prefix) && !name.starts_with(state_prefix))
      fail_input("checkpoint", "{}: tensor '{}' belongs neither to the model nor to the optimiser", path.string(), name);

  // What can be refused without touching anything comes first.
  require_shapes(model, weights, path);
  require_architecture(entry(content.metadata, "lamina.architecture", path), architecture(model), path);
  load_together(path, model, weights, &optimizer, moments);
  return content.metadata;
}

}  // namespace lamina::train
