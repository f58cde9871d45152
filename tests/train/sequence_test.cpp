#include <lamina/train/sequence_task.h>

#include <cmath>

#include <lamina/ops/loss.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/train/trainer.h>

#include "train/small_run.h"

using namespace lamina;
using namespace lamina::train;
using support::TempDir;
using test::same_tensors;

namespace {

SequenceModelOptions small_options(int64_t input, int64_t outputs) {
  SequenceModelOptions options;
  options.layers.input = input;
  options.layers.hidden = 10;
  options.outputs = outputs;
  return options;
}

// Sequences of 1 to 9 steps whose class is the sign of their first number.
data::Sequences by_first_sign(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> steps;
  std::vector<int64_t> lengths, classes;
  for (int64_t i = 0; i < count; ++i) {
    lengths.push_back(1 + rng.below(9));
    for (int64_t t = 0; t < lengths.back(); ++t) steps.push_back(static_cast<float>(rng.uniform() * 2 - 1));
    classes.push_back(steps[steps.size() - static_cast<size_t>(lengths.back())] > 0);
  }
  return {Tensor::from(steps, {static_cast<int64_t>(steps.size()), 1}), lengths, Tensor::from(classes, {count})};
}

}  // namespace

TEST_CASE("padding does not change what a sequence says", "[train][sequences]") {
  for (const bool bidirectional : {false, true}) {
    SequenceModelOptions options = small_options(1, 2);
    options.layers.bidirectional = bidirectional;
    options.layers.layers = 2;
    SequenceModel model(options);
    test::init(model, 1);
    const data::Sequences set = by_first_sign(12, 3);
    const data::SequenceBatch batch = data::pad(set);
    REQUIRE_FALSE(batch.lengths.empty());
    const Tensor together = outputs_of(model, batch, test::device());
    for (int64_t i = 0; i < 12; ++i) {
      const Tensor alone = outputs_of(model, data::pad(set, std::vector<int64_t>{i}), test::device());
      CHECK(test::max_difference(slice(together, 0, i, i + 1), alone) < 1e-6);  // products of other shapes round otherwise
    }
  }
}

TEST_CASE("sequences of unequal length are learned, and resume bitwise (F12)", "[train][sequences]") {
  const TempDir dir;
  const auto session = [&](const std::string& name, TrainerOptions options) {
    SequenceModelOptions small = small_options(1, 2);
    small.state_noise = 0.05;
    small.layers.dropout = 0.1;
    SequenceModel model(small);
    test::init(model, 1);
    optim::Adam adam(model.parameters(), {.lr = 0.02});
    SequenceTask task(model, source_of(by_first_sign(121, 3), {.batch_size = 20, .shuffle_seed = 2, .drop_single = true}), test::device());
    task.add_split("validation", source_of(by_first_sign(101, 4), {.batch_size = 50, .shuffle = false}));
    options.folder = dir / name;
    std::filesystem::create_directories(options.folder);
    Trainer trainer(task, adam, options);
    if (std::filesystem::exists(options.folder / "last.safetensors")) trainer.resume(options.folder / "last.safetensors");
    trainer.fit();
    return trainer.state();
  };
  const TrainState state = session("whole", {.epochs = 25});
  CHECK(state.step == 25 * 6);
  CHECK(state.samples == 25 * 120);
  CHECK(state.splits[0].last.count == 101);
  CHECK(state.splits[0].last["error"] < 0.12);
  CHECK(state.splits[0].last["nll"] < 0.35);
  for (const int64_t steps : {1, 5, 6, 40}) session("parts", {.epochs = 25, .steps = steps});
  session("parts", {.epochs = 25});
  CHECK(same_tensors(dir / "whole/last.safetensors", dir / "parts/last.safetensors"));
}

TEST_CASE("the adding problem is learned; the mean squared error is that of all sequences", "[train][sequences]") {
  SequenceModel model(small_options(2, 1));
  test::init(model, 1);
  optim::Adam adam(model.parameters(), {.lr = 0.02});
  const auto get = [](int64_t epoch, int64_t batch) {
    return data::pad(data::adding_problem(32, 8, Rng(1).stream(std::to_string(epoch * 1000 + batch))));
  };
  SequenceTask task(model, {.batches = 50, .get = get}, test::device());
  task.add_split("validation", source_of(data::adding_problem(101, 8, Rng(2)), {.batch_size = 30, .shuffle = false}));
  CHECK(task.loss_name() == "mse");
  CHECK(task.scores() == std::vector<std::string>{"mse"});
  const data::SequenceBatch all = data::pad(data::adding_problem(101, 8, Rng(2)));
  const double before = mse_loss(outputs_of(model, all, test::device()), test::on_device(all.targets)).item();
  CHECK(std::abs(task.evaluate(0)["mse"] - before) < 1e-5 * before);
  Trainer trainer(task, adam, {.epochs = 12, .clip_norm = 1});
  trainer.fit();
  CHECK(trainer.state().splits[0].last["mse"] < 0.02);  // 1/6 without memory
  CHECK(trainer.state().splits[0].last.count == 101);
}

TEST_CASE("classes of the last steps: the copying problem", "[train][sequences]") {
  SequenceModelOptions options = small_options(10, 8);
  options.cell = RecurrentCell::gru;
  SequenceModel model(options);
  test::init(model, 1);
  const data::SequenceBatch batch = data::pad(data::copy_problem(5, 2, Rng(1)));
  const Tensor y = outputs_of(model, batch, test::device());
  REQUIRE(y.shape() == Shape{5, 10, 8});
  nn::RecurrentState state;
  const Tensor steps = model.steps(test::on_device(batch.x), state);  // [22, 5, 8]
  CHECK(test::max_difference(y, transpose(slice(steps, 0, 12), 0, 1)) == 0);
  SequenceTask task(model, {.batches = 1, .get = [&](int64_t, int64_t) { return batch; }}, test::device());
  task.seek(0, 0);
  CHECK(std::abs(task.loss().value.item() - std::log(8.0)) < 0.2);  // near guessing
  CHECK(task.loss().items == 5);
  task.add_split("validation", source_of(data::copy_problem(7, 2, Rng(3)), {.batch_size = 3, .shuffle = false}));
  CHECK(task.evaluate(0)["error"] > 0.5);

  data::SequenceBatch uneven = batch;
  uneven.lengths = {22, 22, 22, 22, 21};
  CHECK_THROWS_WITH(outputs_of(model, uneven), contains("need sequences of one length"));
}

TEST_CASE("a model that does not fit its targets is refused", "[train][sequences]") {
  SequenceModel model(small_options(2, 3));
  const auto get = [](int64_t, int64_t) { return data::pad(data::adding_problem(4, 8, Rng(1))); };
  CHECK_THROWS_WITH(SequenceTask(model, {.batches = 1, .get = get}), contains("model: expected 1 outputs, one for each target, got 3"));
  CHECK_THROWS_WITH(SequenceTask(model, {.batches = 0, .get = get}), contains("expected at least one batch, got 0"));
  SequenceModelOptions bad = small_options(2, 3);
  bad.state_noise = -1;
  CHECK_THROWS_WITH(SequenceModel(bad), contains("state_noise: expected at least 0, got -1"));
  bad = small_options(2, 3);
  bad.layers.hidden = 0;
  CHECK_THROWS_AS(SequenceModel(bad), Error);
}

TEST_CASE("noise on the first state is there in training alone, another each time", "[train][sequences]") {
  SequenceModelOptions options = small_options(1, 2);
  options.state_noise = 0.5;
  SequenceModel model(options);
  test::init(model, 1);
  const Tensor x = test::zeros({2, 3, 1});
  const Tensor a = model.last(x), b = model.last(x);
  CHECK(test::max_difference(a, b) > 1e-3);
  CHECK(test::max_difference(slice(a, 0, 0, 1), slice(a, 0, 1, 2)) > 1e-3);  // of each sequence
  model.eval();
  CHECK(test::max_difference(model.last(x), model.last(x)) == 0);
}
