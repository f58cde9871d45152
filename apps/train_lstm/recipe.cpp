#include "train_lstm/recipe.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lamina/core/error.h>
#include <lamina/data/sequences.h>
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
  visit("ignore", r.ignore);
  visit("columns", r.columns);
  visit("classes", r.classes);
  visit("input_mean", r.input_mean);
  visit("input_scale", r.input_scale);
  visit("target_mean", r.target_mean);
  visit("target_scale", r.target_scale);
}

// What the rest of the program takes for granted; a file that others have written may say anything.
void check(const Recipe& r) {
  const auto expect = [](bool good, const char* what) {
    if (!good) throw InputError(fmt::format("{} do not fit together", what));
  };
  const auto of_size = [](size_t size, int64_t wanted) { return static_cast<int64_t>(size) == wanted; };
  const auto are_scales = [&](const std::vector<double>& mean, const std::vector<double>& scale, int64_t size) {
    return of_size(mean.size(), size) && of_size(scale.size(), size) && std::ranges::all_of(scale, [](double x) { return x > 0; });
  };
  expect(r.cell == "lstm" || r.cell == "gru" || r.cell == "rnn", "cell and program");
  if (r.task == "text") {
    expect(data::Vocabulary::parse(r.vocabulary).size() == r.outputs, "vocabulary and outputs");
    expect(r.streams > 0 && r.bptt > 0, "streams and steps");
  } else if (r.task == "csv") {
    expect(of_size(r.columns.size(), r.inputs) && are_scales(r.input_mean, r.input_scale, r.inputs), "columns, their scales and inputs");
    expect(r.classify.empty() != r.regress.empty(), "columns to classify and to regress");
    expect(of_size(r.regress.empty() ? r.classes.size() : r.regress.size(), r.outputs), "targets and outputs");
    expect(are_scales(r.target_mean, r.target_scale, static_cast<int64_t>(r.regress.size())), "targets and their scales");
  } else {
    const std::map<std::string, std::pair<int64_t, int64_t>> widths{
        {"rows", {28, 10}}, {"pixels", {1, 10}}, {"adding", {2, 1}}, {"copy", {data::copy_symbols + 2, data::copy_symbols}}};
    const auto task = widths.find(r.task);
    expect(task != widths.end() && task->second == std::pair(r.inputs, r.outputs), "task, inputs and outputs");
  }
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
    check(loaded.recipe);
    loaded.model = std::make_unique<train::SequenceModel>(model_options(loaded.recipe));
  } catch (const std::exception& error) {  // of JSON, or sizes that no model has
    throw InputError(fmt::format("{}: damaged '{}': {}", path.string(), key, error.what()));
  }
  train::load_weights(path, *loaded.model);
  loaded.model->eval();
  return loaded;
}

}  // namespace lamina::train_lstm
