#include "train_lstm/data.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include <lamina/core/error.h>
#include <lamina/data/dataset.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/train/classification.h>
#include <lamina/train/language_task.h>

namespace lamina::train_lstm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t image_classes = 10, image_rows = 28, image_pixels = 784;
constexpr int64_t drawn_batches = 100;      // an "epoch" of adding and copy
constexpr int64_t drawn_validation = 1000;  // sequences that validate there
constexpr int64_t eval_batch = 250;

// What the options say of any model.
Recipe recipe_of(const Options& o) {
  Recipe r;
  r.task = o.task;
  r.cell = o.cell;
  r.init = o.init;
  r.layers = o.layers;
  r.hidden = o.hidden;
  r.bidirectional = o.bidirectional;
  r.dropout = o.dropout;
  r.state_noise = o.state_noise;
  r.forget_bias = o.forget_bias;
  r.gain = o.gain;
  return r;
}

// 1234567 as "1,234,567".
std::string counted(int64_t value) {
  std::string text = std::to_string(value);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

// -- text --------------------------------------------------------------------------------------------------------------

struct Text {
  data::Vocabulary vocabulary;
  std::shared_ptr<const std::vector<int32_t>> train;
  std::vector<int32_t> validation;
};

// A task with all that it refers to.
struct OwningLanguageTask : train::LanguageTask {
  OwningLanguageTask(train::SequenceModel& model, std::shared_ptr<const Text> text, const data::TextBatchesOptions& options, Device device)
      : LanguageTask(model, text->vocabulary, data::TextBatches(text->train, options), device), text_(text) {
    add_split("validation", text->validation);
  }

 private:
  std::shared_ptr<const Text> text_;
};

Data load_text(const Options& o) {
  const data::TextUnit unit = data::parse_unit(o.unit);
  const std::string content = data::read_text(o.file, unit);
  const auto text = std::make_shared<Text>();
  text->vocabulary = data::Vocabulary::of(content, unit);
  std::vector<int32_t> ids = text->vocabulary.encode(content, o.file);
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t validating = std::min(std::max<int64_t>(std::llround(o.validation * static_cast<double>(count)), 2), count);
  text->validation.assign(ids.end() - validating, ids.end());
  ids.resize(static_cast<size_t>(count - validating));
  text->train = std::make_shared<const std::vector<int32_t>>(std::move(ids));
  const data::TextBatchesOptions options{.batch_size = o.batch_size, .steps = o.bptt, .seed = static_cast<uint64_t>(o.seed)};
  Data data{recipe_of(o), 0, {}, {}};
  try {
    data.batches = data::TextBatches(text->train, options).num_batches();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: too short to train on: {} of its {} (the others validate); a smaller --batch-size or --bptt needs less", o.file,
                                 error.what(), count));
  }
  data.recipe.embedding = o.embedding;
  data.recipe.outputs = text->vocabulary.size();
  data.recipe.vocabulary = text->vocabulary.str();
  data.recipe.streams = o.batch_size;
  data.recipe.bptt = o.bptt;
  data.description = fmt::format("{}: {} {}s of {} kinds, of which the last {} validate", o.file, counted(count), o.unit, text->vocabulary.size(),
                                 counted(validating));
  data.make_task = [text, options, device = o.device](train::SequenceModel& model) {
    return std::make_unique<OwningLanguageTask>(model, text, options, device);
  };
  return data;
}

// -- images ------------------------------------------------------------------------------------------------------------

struct Images {
  data::Dataset train, validation, test;
};

fs::path image_dir(const Options& o) { return o.data.empty() ? data::dataset_dir() : fs::path(o.data); }

// A task with all that it refers to; the loader comes first, for the task is made with it.
struct ImageLoader {
  data::Loader batches;
};
struct ImageTask : ImageLoader, train::Classification {
  ImageTask(train::Classifier classifier, const Images& images, const data::LoaderOptions& options, Device device)
      : ImageLoader{data::Loader(images.train, options)},
        Classification(std::move(classifier), ImageLoader::batches, {.eval_batch_size = eval_batch, .device = device}) {
    add_split("validation", images.validation);
    add_split("test", images.test);
  }
};

train::Classifier classifier_of(train::SequenceModel& model, const Recipe& recipe) {
  train::Classifier classifier(model);
  classifier.forward = [&model, recipe](const Tensor& images) { return model.last(image_sequences(recipe, images)); };
  return classifier;
}

Data load_images(const Options& o) {
  const fs::path dir = image_dir(o);
  const data::Dataset all = data::mnist(dir, data::Split::train_full);
  if (all.size() <= data::validation_size)
    throw InputError(fmt::format("{}: expected more than {} training images, of which the first {} validate, got {}", dir.string(),
                                 data::validation_size, data::validation_size, all.size()));
  const auto images = std::make_shared<Images>(
      Images{all.slice(data::validation_size, all.size()), all.slice(0, data::validation_size), data::mnist(dir, data::Split::test)});
  if (o.limit > 0) images->train = images->train.limit(o.limit);
  if (o.batch_size > images->train.size())
    throw InputError(fmt::format("--batch-size: expected at most {}, the number of training images, got {}", images->train.size(), o.batch_size));
  Data data{recipe_of(o), 0, {}, {}};
  data.recipe.inputs = o.task == "rows" ? image_rows : 1;
  data.recipe.max_steps = o.task == "rows" ? image_rows : image_pixels;
  data.recipe.outputs = image_classes;
  data.recipe.permute = o.permute;
  const data::LoaderOptions options{.batch_size = o.batch_size, .shuffle_seed = static_cast<uint64_t>(o.seed)};
  data.batches = train::trained_batches(data::Loader(images->train, options));
  data.description =
      fmt::format("{} images train, {} validate, {} test; {} steps of {}", counted(images->train.size()), counted(images->validation.size()),
                  counted(images->test.size()), data.recipe.max_steps, o.task == "rows" ? "28 pixels" : "a pixel");
  data.make_task = [images, options, recipe = data.recipe, device = o.device](train::SequenceModel& model) {
    return std::make_unique<ImageTask>(classifier_of(model, recipe), *images, options, device);
  };
  return data;
}

// -- adding and copy ---------------------------------------------------------------------------------------------------

data::Sequences drawn(const std::string& task, int64_t count, int64_t length, const Rng& rng) {
  return task == "adding" ? data::adding_problem(count, length, rng) : data::copy_problem(count, length, rng);
}

train::SequenceSource fresh_sequences(const std::string& task, int64_t length, uint64_t seed) {
  return train::source_of(drawn(task, drawn_validation, length, Rng(seed).stream(task + "/validation")),
                          {.batch_size = eval_batch, .shuffle = false});
}

Data load_drawn(const Options& o) {
  const train::SequenceSource validation = fresh_sequences(o.task, o.length, static_cast<uint64_t>(o.seed));  // refuses sizes out of range
  Data data{recipe_of(o), drawn_batches, {}, {}};
  data.recipe.length = o.length;
  data.recipe.inputs = o.task == "adding" ? 2 : data::copy_symbols + 2;
  data.recipe.outputs = o.task == "adding" ? 1 : data::copy_symbols;
  data.recipe.max_steps = o.task == "adding" ? o.length : o.length + 2 * data::copy_count;
  data.description =
      fmt::format("{}: {} steps, drawn anew for each batch; {} sequences validate", o.task, data.recipe.max_steps, counted(drawn_validation));
  const auto get = [task = o.task, count = o.batch_size, length = o.length, rng = Rng(static_cast<uint64_t>(o.seed))](int64_t epoch, int64_t batch) {
    return data::pad(drawn(task, count, length, rng.stream(fmt::format("{}/{}/{}", task, epoch, batch))));
  };
  const train::SequenceSource training{drawn_batches,
                                       get,
                                       {{"data.problem", o.task},
                                        {"data.length", std::to_string(o.length)},
                                        {"data.batch_size", std::to_string(o.batch_size)},
                                        {"data.seed", std::to_string(o.seed)}}};
  data.make_task = [training, validation, device = o.device](train::SequenceModel& model) {
    auto task = std::make_unique<train::SequenceTask>(model, training, device);
    task->add_split("validation", validation);
    return task;
  };
  return data;
}

// -- csv ---------------------------------------------------------------------------------------------------------------

// Mean and standard deviation (1 where that is 0) of each column of a matrix.
void measure(const Tensor& rows, std::vector<double>& mean, std::vector<double>& scale) {
  const int64_t count = rows.size(0), width = rows.size(1);
  const float* x = rows.data<float>();
  for (int64_t c = 0; c < width; ++c) {
    double sum = 0, squares = 0;
    for (int64_t r = 0; r < count; ++r) sum += x[r * width + c];
    mean.push_back(sum / static_cast<double>(count));
    for (int64_t r = 0; r < count; ++r) squares += (x[r * width + c] - mean.back()) * (x[r * width + c] - mean.back());
    const double deviation = std::sqrt(squares / static_cast<double>(count));
    scale.push_back(deviation > 0 ? deviation : 1);
  }
}

void standardise(Tensor& rows, const std::vector<std::string>& columns, const std::vector<double>& mean, const std::vector<double>& scale,
                 const std::string& path) {
  float* x = rows.mutable_data<float>();
  for (int64_t r = 0; r < rows.size(0); ++r)
    for (size_t c = 0; c < mean.size(); ++c, ++x) {
      const double value = (*x - mean[c]) / scale[c];
      if (!(std::abs(value) <= std::numeric_limits<float>::max()))
        throw InputError(fmt::format("{}: column '{}': {} is too far from the training sequences, whose mean is {:g} and deviation {:g}", path,
                                     columns[c], *x, mean[c], scale[c]));
      *x = static_cast<float>(value);
    }
}

void standardise(data::Sequences& sequences, const Recipe& recipe, const std::string& path) {
  standardise(sequences.steps, recipe.columns, recipe.input_mean, recipe.input_scale, path);
  if (sequences.targets.dtype() == DType::f32) standardise(sequences.targets, recipe.regress, recipe.target_mean, recipe.target_scale, path);
}

Data load_csv(const Options& o) {
  data::CsvColumns columns;
  columns.id = o.id;
  columns.classify = o.classify;
  columns.regress = o.regress;
  columns.ignore = o.ignore;
  data::CsvSequences file = data::read_csv(o.file, columns);
  const int64_t count = file.sequences.size();
  if (count < 2) throw InputError(fmt::format("{}: expected at least 2 sequences, one of them to validate, got {}", o.file, count));
  const int64_t validating = std::clamp<int64_t>(std::llround(o.validation * static_cast<double>(count)), 1, count - 1);
  Rng rng = Rng(static_cast<uint64_t>(o.seed)).stream("csv/validation");
  const std::vector<int64_t> order = randperm(count, rng).to_vector<int64_t>();
  data::Sequences validation = file.sequences.select(std::span(order).first(static_cast<size_t>(validating)));
  data::Sequences training = file.sequences.select(std::span(order).subspan(static_cast<size_t>(validating)));
  const int64_t longest = std::ranges::max(file.sequences.lengths), shortest = std::ranges::min(file.sequences.lengths);
  if (longest != shortest && std::ranges::count(norms_of(o), "batch") > 0)
    throw InputError(
        fmt::format("--norm: batch keeps statistics for each step over a batch, and needs sequences of one length, got {} to {} steps ({})", shortest,
                    longest, o.file));
  if (training.size() < 2 && std::ranges::count(norms_of(o), "batch") > 0)
    throw InputError(fmt::format("--norm: batch needs at least 2 sequences to train on, got {} ({})", training.size(), o.file));
  Data data{recipe_of(o), 0, {}, {}};
  data.recipe.id = o.id;
  data.recipe.classify = o.classify;
  data.recipe.regress = o.regress;
  data.recipe.ignore = o.ignore;
  data.recipe.columns = file.inputs;
  data.recipe.classes = file.classes;
  data.recipe.inputs = file.sequences.width();
  data.recipe.outputs = static_cast<int64_t>(o.classify.empty() ? o.regress.size() : file.classes.size());
  data.recipe.max_steps = longest;
  measure(training.steps, data.recipe.input_mean, data.recipe.input_scale);
  if (!o.regress.empty()) measure(training.targets, data.recipe.target_mean, data.recipe.target_scale);
  standardise(training, data.recipe, o.file);
  standardise(validation, data.recipe, o.file);
  data.description = fmt::format("{}: {} sequences of {} to {} steps of {}, of which {} validate", o.file, counted(count), shortest, longest,
                                 data.recipe.inputs == 1 ? "a number" : fmt::format("{} numbers", data.recipe.inputs), counted(validating));
  const train::SequenceSource source =
      train::source_of(training, {.batch_size = o.batch_size, .shuffle_seed = static_cast<uint64_t>(o.seed), .drop_single = true});
  const train::SequenceSource validation_source = train::source_of(validation, {.batch_size = eval_batch, .shuffle = false});
  data.batches = source.batches;
  data.make_task = [source, validation_source, device = o.device](train::SequenceModel& model) {
    auto task = std::make_unique<train::SequenceTask>(model, source, device);
    task->add_split("validation", validation_source);
    return task;
  };
  return data;
}

}  // namespace

Data load_data(const Options& options) {
  if (options.task == "text") return load_text(options);
  if (options.task == "csv") return load_csv(options);
  return options.task == "rows" || options.task == "pixels" ? load_images(options) : load_drawn(options);
}

Tensor image_sequences(const Recipe& recipe, const Tensor& images) {
  const int64_t count = images.size(0);
  if (recipe.task == "rows") return transpose(reshape(images, {count, image_rows, image_rows}), 0, 1);
  Tensor pixels = transpose(images);
  if (recipe.permute > 0) {
    Rng rng = Rng(static_cast<uint64_t>(recipe.permute)).stream("pixels/permutation");
    pixels = index_select(pixels, 0, randperm(image_pixels, rng).to(images.device()));
  }
  return reshape(pixels, {image_pixels, count, 1});
}

data::CsvSequences read_known(const std::string& path, const Recipe& recipe, bool with_targets) {
  data::CsvColumns columns{.id = recipe.id, .ignore = recipe.ignore, .inputs = recipe.columns, .classes = recipe.classes};
  if (with_targets) {
    columns.classify = recipe.classify;
    columns.regress = recipe.regress;
  } else {
    columns.ignore.insert(columns.ignore.end(), recipe.regress.begin(), recipe.regress.end());
    if (!recipe.classify.empty()) columns.ignore.push_back(recipe.classify);
  }
  data::CsvSequences file = data::read_csv(path, columns);
  standardise(file.sequences, recipe, path);
  return file;
}

Evaluations load_evaluations(const Options& o, const Recipe& recipe) {
  const Device device = o.device;
  const bool needs_file = recipe.task == "text" || recipe.task == "csv";
  if (needs_file == o.file.empty())
    throw InputError(needs_file ? fmt::format("--eval: a model of {} needs a file: train_lstm --eval {} FILE", recipe.task, o.eval)
                                : fmt::format("--eval: a model of {} takes no file, got {}", recipe.task, o.file));
  if (recipe.task == "text") {
    const data::Vocabulary vocabulary = data::Vocabulary::parse(recipe.vocabulary);
    const std::vector<int32_t> text = vocabulary.encode(data::read_text(o.file, vocabulary.unit()), o.file);
    if (text.size() < 2) throw InputError(fmt::format("{}: expected at least 2 symbols, got {}", o.file, text.size()));
    return {{"text", [=](train::SequenceModel& model) { return train::evaluate_text(model, text, recipe.streams, recipe.bptt, device); }}};
  }
  const auto of_source = [device](const train::SequenceSource& source) {
    return [source, device](train::SequenceModel& model) { return train::evaluate_sequences(model, source, device); };
  };
  if (recipe.task == "csv")
    return {{"csv", of_source(train::source_of(read_known(o.file, recipe, true).sequences, {.batch_size = eval_batch, .shuffle = false}))}};
  if (recipe.task == "adding" || recipe.task == "copy")
    return {{"drawn", of_source(fresh_sequences(recipe.task, recipe.length, static_cast<uint64_t>(o.seed)))}};
  Evaluations splits;
  for (const auto& [name, split] : {std::pair{"validation", data::Split::validation}, {"test", data::Split::test}}) {
    const auto batches =
        std::make_shared<data::Loader>(data::mnist(image_dir(o), split), data::LoaderOptions{.batch_size = eval_batch, .shuffle = false});
    splits.emplace_back(name, [batches, recipe, device](train::SequenceModel& model) {
      const train::Evaluation result = train::evaluate(classifier_of(model, recipe), *batches, device);
      return train::Scores{{{"nll", result.nll}, {"error", result.error}}, result.count};
    });
  }
  return splits;
}

}  // namespace lamina::train_lstm
