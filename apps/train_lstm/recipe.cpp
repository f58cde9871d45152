#include "train_lstm/recipe.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lamina/core/error.h>
#include <lamina/data/text.h>
#include <lamina/io/safetensors.h>

#include "train_lstm/options.h"

namespace lamina::train_lstm {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* key = "train_lstm.recipe";

template <class T>
void write(Json& json, const char* name, const T& value) {
  json[name] = value;
}
void write(Json& json, const char* name, const std::optional<double>& value) {
  if (value) json[name] = *value;
}
template <class T>
void read(const Json& json, const char* name, T& value) {
  json.at(name).get_to(value);
}
void read(const Json& json, const char* name, std::optional<double>& value) {
  if (json.contains(name)) value = json.at(name).get<double>();
}

// Calls visit(name, field) for every field, in one place for both directions.
template <class R, class Visit>
void each_field(R& r, Visit&& visit) {
  visit("task", r.task);
  visit("cell", r.cell);
  visit("norm", r.norm);
  visit("init", r.init);
  visit("layers", r.layers);
  visit("hidden", r.hidden);
  visit("inputs", r.inputs);
  visit("outputs", r.outputs);
  visit("embedding", r.embedding);
  visit("max_steps", r.max_steps);
  visit("bidirectional", r.bidirectional);
  visit("dropout", r.dropout);
  visit("state_noise", r.state_noise);
  visit("forget_bias", r.forget_bias);
  visit("gain", r.gain);
  visit("vocabulary", r.vocabulary);
  visit("streams", r.streams);
  visit("bptt", r.bptt);
  visit("permute", r.permute);
  visit("length", r.length);
  visit("id", r.id);
  visit("classify", r.classify);
  visit("regress", r.regress);
  visit("columns", r.columns);
  visit("classes", r.classes);
  visit("input_mean", r.input_mean);
  visit("input_scale", r.input_scale);
  visit("target_mean", r.target_mean);
  visit("target_scale", r.target_scale);
}

}  // namespace

train::Metadata to_metadata(const Recipe& recipe) {
  Json json = Json::object();
  each_field(recipe, [&](const char* name, const auto& value) { write(json, name, value); });
  return {{key, json.dump()}};
}

train::SequenceModelOptions model_options(const Recipe& recipe) {
  train::SequenceModelOptions options;
  options.cell = parse_cell(recipe.cell);
  options.layers.input = recipe.inputs;
  options.layers.hidden = recipe.hidden;
  options.layers.layers = recipe.layers;
  options.layers.norm = recipe.norm;
  options.layers.dropout = recipe.dropout;
  options.layers.bidirectional = recipe.bidirectional;
  options.layers.init = recipe.init;
  options.layers.forget_bias = recipe.forget_bias;
  options.layers.gain = recipe.gain;
  if (recipe.norm == "batch") options.layers.max_steps = recipe.max_steps;
  if (recipe.task == "text") options.vocabulary = recipe.outputs;
  options.embedding = recipe.embedding;
  options.outputs = recipe.outputs;
  options.state_noise = recipe.state_noise;
  return options;
}

Loaded load_model(const std::filesystem::path& path) {
  const train::Metadata metadata = io::read_safetensors(path).metadata;
  const auto text = metadata.find(key);
  if (text == metadata.end())
    throw InputError(fmt::format("{}: not a checkpoint of train_lstm ('{}' is missing in its metadata)", path.string(), key));
  Loaded loaded;
  try {
    const Json json = Json::parse(text->second);
    each_field(loaded.recipe, [&](const char* name, auto& value) { read(json, name, value); });
    if (loaded.recipe.task == "text") data::Vocabulary::parse(loaded.recipe.vocabulary);
    loaded.model = std::make_unique<train::SequenceModel>(model_options(loaded.recipe));
  } catch (const std::exception& error) {  // of JSON, or sizes that no model has
    throw InputError(fmt::format("{}: damaged '{}': {}", path.string(), key, error.what()));
  }
  train::load_weights(path, *loaded.model);
  loaded.model->eval();
  return loaded;
}

}  // namespace lamina::train_lstm
