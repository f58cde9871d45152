#include "train_lstm/use.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lamina/autograd/graph.h>
#include <lamina/core/error.h>
#include <lamina/data/loader.h>
#include <lamina/io/idx.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/ops/softmax.h>

#include "train_lstm/data.h"
#include "train_lstm/recipe.h"

namespace lamina::train_lstm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t predict_batch = 250;

Loaded load(const Options& options, const std::string& path) {
  Loaded loaded = load_model(path);
  loaded.model->to(options.device);
  return loaded;
}

std::string checkpoint_of(const Options& options) {
  return options.checkpoint.empty() ? (fs::path(options.out) / "best.safetensors").string() : options.checkpoint;
}

// A field of a CSV file, in quotes where it must be.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

void print_header(const Recipe& recipe, const std::string& id) {
  std::string line = csv_field(id);
  if (recipe.regress.empty()) line += fmt::format(",{},probability", csv_field(recipe.classify.empty() ? "class" : recipe.classify));
  for (const std::string& name : recipe.regress) line += "," + csv_field(name);
  fmt::print("{}\n", line);
}

// `outputs` [N, K] of the sequences `first`, `first` + 1, ...
void print_outputs(const Recipe& recipe, const Tensor& outputs, const std::function<std::string(int64_t)>& id, int64_t first) {
  const bool classes = recipe.regress.empty();
  const Tensor values = (classes ? softmax(outputs) : outputs).to(Device::cpu());
  const float* value = values.data<float>();
  const auto width = static_cast<size_t>(values.size(1));
  for (int64_t n = 0; n < values.size(0); ++n, value += width) {
    std::string line = csv_field(id(first + n));
    if (classes) {
      const auto best = static_cast<size_t>(std::max_element(value, value + width) - value);
      line += fmt::format(",{},{:.4g}", recipe.classes.empty() ? std::to_string(best) : csv_field(recipe.classes[best]), value[best]);
    } else {
      for (size_t k = 0; k < width; ++k) line += fmt::format(",{:.6g}", value[k] * recipe.target_scale[k] + recipe.target_mean[k]);
    }
    fmt::print("{}\n", line);
  }
}

// Draws a symbol from logits [V].
int64_t draw(const float* logits, int64_t count, double temperature, Rng& rng) {
  const float* most = std::max_element(logits, logits + count);
  if (temperature == 0) return most - logits;
  std::vector<double> weights;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += weights.emplace_back(std::exp((static_cast<double>(logits[i]) - *most) / temperature));
  double left = rng.uniform() * sum;
  for (int64_t i = 0; i < count; ++i)
    if ((left -= weights[static_cast<size_t>(i)]) < 0) return i;
  return most - logits;  // rounding
}

}  // namespace

void evaluate(const Options& options) {
  const Loaded loaded = load(options, options.eval);
  nlohmann::ordered_json json;
  for (const auto& [name, run] : load_evaluations(options, loaded.recipe)) {
    const train::Scores scores = run(*loaded.model);
    std::string line = fmt::format("{:<11}", name);
    for (const auto& [score, value] : scores.values) {
      line += score == "error" ? fmt::format(" error {:.2f} % ", value * 100) : fmt::format(" {} {:.6g} ", score, value);
      json[name][score] = value;
    }
    fmt::print("{} ({} counted)\n", line, scores.count);
    json[name]["count"] = scores.count;
  }
  if (options.json) fmt::print("{}\n", json.dump());
}

void predict(const Options& options) {
  const Loaded loaded = load(options, checkpoint_of(options));
  const Recipe& recipe = loaded.recipe;
  const Device device = options.device;
  const NoGrad guard;
  if (recipe.task == "csv") {
    const data::CsvSequences file = read_known(options.predict, recipe, false);
    const train::SequenceSource source = train::source_of(file.sequences, {.batch_size = predict_batch, .shuffle = false});
    print_header(recipe, recipe.id);
    for (int64_t i = 0; i < source.batches; ++i)
      print_outputs(
          recipe, train::outputs_of(*loaded.model, source.get(0, i), device), [&](int64_t n) { return file.ids[static_cast<size_t>(n)]; },
          i * predict_batch);
  } else if (recipe.task == "rows" || recipe.task == "pixels") {
    const Tensor images = io::read_idx_images(options.predict);
    if (images.size(1) != 28 || images.size(2) != 28)
      throw InputError(fmt::format("{}: expected images of 28 x 28 pixels, got {} x {}", options.predict, images.size(1), images.size(2)));
    data::Loader batches({images, Tensor::zeros({images.size(0)}, DType::i64)}, {.batch_size = predict_batch, .shuffle = false});
    print_header(recipe, "image");
    for (auto batch = batches.begin(); batch != batches.end(); ++batch)
      print_outputs(
          recipe, loaded.model->last(image_sequences(recipe, batch->images.to(device))), [](int64_t n) { return std::to_string(n); },
          batch.index() * predict_batch);
  } else {
    throw InputError(fmt::format("--predict: for models of csv, rows and pixels; {} is of {}{}", checkpoint_of(options), recipe.task,
                                 recipe.task == "text" ? " (see --sample and --eval)" : ""));
  }
}

void sample(const Options& options) {
  const Loaded loaded = load(options, checkpoint_of(options));
  if (loaded.recipe.task != "text")
    throw InputError(fmt::format("--sample: {} is a model of {}, not of text", checkpoint_of(options), loaded.recipe.task));
  const data::Vocabulary vocabulary = data::Vocabulary::parse(loaded.recipe.vocabulary);
  std::vector<int32_t> ids = vocabulary.encode(options.prompt, "--prompt");
  if (ids.empty()) ids = {static_cast<int32_t>(std::max<int64_t>(vocabulary.find('\n'), 0))};  // read, but not printed
  const Device device = options.device;
  const NoGrad guard;
  Rng rng = Rng(static_cast<uint64_t>(options.seed)).stream("sample");
  nn::RecurrentState state;
  fmt::print("{}", options.prompt);
  for (int64_t n = 0; n < options.sample; ++n) {
    const auto steps = static_cast<int64_t>(ids.size());
    const Tensor x = Tensor::from(std::vector<int64_t>(ids.begin(), ids.end()), {steps, 1}).to(device);
    const Tensor logits = select(loaded.model->steps(x, state), 0, steps - 1).to(Device::cpu());  // [1, V]
    if (!all_finite(logits)) throw Error(fmt::format("--sample: the model's outputs are not finite ({})", checkpoint_of(options)));
    ids = {static_cast<int32_t>(draw(logits.data<float>(), vocabulary.size(), options.temperature, rng))};
    const std::string symbol = vocabulary.decode(ids[0]);
    std::fwrite(symbol.data(), 1, symbol.size(), stdout);
  }
  fmt::print("\n");
}

}  // namespace lamina::train_lstm
