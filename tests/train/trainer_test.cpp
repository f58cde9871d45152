#include <lamina/train/trainer.h>

#include <cmath>
#include <csignal>
#include <cstring>

#include <lamina/core/memory.h>
#include <lamina/core/parallel.h>
#include <lamina/train/stop.h>

#include "train/small_run.h"

using namespace lamina;
using namespace lamina::train;
namespace fs = std::filesystem;
using support::get;
using support::put;
using support::TempDir;
using test::rows;
using test::same_tensors;
using test::Session;
using test::small_data;
using test::small_model;

TEST_CASE("training learns, and leaves its records", "[train][trainer]") {
  const TempDir dir;
  Session run(dir.path(), {.epochs = 8});
  CHECK(run.trainer->fit() == Outcome::finished);
  const TrainState& state = run.trainer->state();
  CHECK(state.epoch == 8);
  CHECK(state.step == 8 * 7);
  CHECK(state.samples == 8 * 53);
  CHECK(state.splits[1].last.count == 30);
  CHECK(state.splits[1].last["error"] < 0.2);
  CHECK(state.train_loss < 0.9);
  CHECK(state.train_seconds > 0);
  CHECK(state.wall_seconds >= state.train_seconds);
  const std::string csv = rows(dir.path());
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 1 + 8 * 5);
  CHECK_THAT(csv, contains("step,epoch,split,metric,value\n7,1,train,nll,"));
  CHECK_THAT(csv, contains("\n56,8,test,error,"));
  CHECK(fs::exists(dir / "best.safetensors"));
}

TEST_CASE("a resumed run is bitwise the uninterrupted one (F12)", "[train][trainer]") {
  const TempDir dir;
  for (const char* norm : {"batch", "layer"}) {
    const fs::path whole = dir / (std::string("whole") + norm), parts = dir / (std::string("parts") + norm);
    Session(whole, {.epochs = 4}, norm).trainer->fit();
    Session(parts, {.epochs = 2}, norm).trainer->fit();
    REQUIRE_FALSE(same_tensors(whole / "last.safetensors", parts / "last.safetensors"));
    Session(parts, {.epochs = 4}, norm).trainer->fit();
    CHECK(same_tensors(whole / "last.safetensors", parts / "last.safetensors"));
    CHECK(rows(whole) == rows(parts));
    CHECK(get(whole / "best.safetensors") == get(parts / "best.safetensors"));
  }
}

TEST_CASE("a signal stops after the step, saves, and the rest is bitwise the same (G04, F12)", "[train][trainer]") {
  const TempDir dir;
  Session(dir / "whole", {.epochs = 3, .eval_every = 4}).trainer->fit();
  for (const int when : {1, 2, 3, 4, 5}) {  // evaluations: steps 4, 7 (end of an epoch), 8, 12, 14
    const fs::path parts = dir / std::to_string(when);
    const StopOnSignal signals;
    int evaluations = 0;
    TrainerOptions options{.epochs = 3, .eval_every = 4};
    options.before_evaluation = [&] {
      if (++evaluations == when) std::raise(when % 2 ? SIGINT : SIGTERM);
    };
    Session first(parts, options);
    CHECK(first.trainer->fit() == Outcome::interrupted);
    CHECK(stop_signal() == (when % 2 ? SIGINT : SIGTERM));
    CHECK(first.trainer->state().step < 21);
    CHECK(first.trainer->state().batch == first.trainer->state().step % 7);
  }
  CHECK(stop_signal() == 0);
  for (const int when : {1, 2, 3, 4, 5}) {
    const fs::path parts = dir / std::to_string(when);
    CHECK(Session(parts, {.epochs = 3, .eval_every = 4}).trainer->fit() == Outcome::finished);
    CHECK(same_tensors(dir / "whole/last.safetensors", parts / "last.safetensors"));
    CHECK(rows(dir / "whole") == rows(parts));
    CHECK(get(dir / "whole/best.safetensors") == get(parts / "best.safetensors"));
  }
}

TEST_CASE("a crash between the rows and their checkpoint leaves each row once (F17)", "[train][trainer]") {
  const TempDir dir;
  Session(dir / "whole", {.epochs = 5}).trainer->fit();
  Session(dir / "crash", {.epochs = 3}).trainer->fit();
  const std::string checkpoint = get(dir / "crash/last.safetensors");
  Session(dir / "crash", {.epochs = 4}).trainer->fit();
  put(dir / "crash/last.safetensors", checkpoint);  // the one of epoch 4 was not written
  put(dir / "crash/metrics.csv", get(dir / "crash/metrics.csv") + "35,5,0.1");
  Session(dir / "crash", {.epochs = 5}).trainer->fit();
  CHECK(rows(dir / "crash") == rows(dir / "whole"));
  CHECK(same_tensors(dir / "whole/last.safetensors", dir / "crash/last.safetensors"));
}

TEST_CASE("a checkpoint of other batches or splits is refused, and another thread count warns", "[train][trainer]") {
  const TempDir dir;
  Session(dir / "run", {.epochs = 1}).trainer->fit();
  nn::Sequential model = small_model();
  optim::Adam adam(model.parameters());
  const auto resume = [&](const data::Dataset& dataset, data::LoaderOptions options, bool splits = true, uint64_t test_seed = 3) {
    data::Loader batches(dataset, options);
    Classification task(model, batches, {.device = test::device()});
    if (splits) task.add_split("validation", small_data(21, 2));
    if (splits) task.add_split("test", small_data(30, test_seed));
    Trainer trainer(task, adam);
    return trainer.resume(dir / "run/last.safetensors");
  };
  CHECK(resume(small_data(53, 1), {.batch_size = 8, .shuffle_seed = 5}).empty());
  CHECK_THROWS_WITH(resume(small_data(53, 1), {.batch_size = 4, .shuffle_seed = 5}), contains("data.batch_size is 8 there, 4 here"));
  CHECK_THROWS_WITH(resume(small_data(53, 1), {.batch_size = 8, .shuffle_seed = 6}), contains("data.shuffle_seed is 5 there, 6 here"));
  CHECK_THROWS_WITH(resume(small_data(50, 1), {.batch_size = 8, .shuffle_seed = 5}), contains("data.examples is 53 there, 50 here"));
  CHECK_THROWS_WITH(resume(small_data(53, 4), {.batch_size = 8, .shuffle_seed = 5}), contains("data.examples_crc32 is "));
  CHECK_THROWS_WITH(resume(small_data(53, 1), {.batch_size = 8, .shuffle_seed = 5}, false), contains("train.splits is validation,test there"));
  CHECK_THROWS_WITH(resume(small_data(53, 1), {.batch_size = 8, .shuffle_seed = 5}, true, 4), contains("data.test_crc32 is "));
  const int threads = num_threads();
  set_num_threads(threads + 1);
  const std::string warning = resume(small_data(53, 1), {.batch_size = 8, .shuffle_seed = 5});
  set_num_threads(threads);
  if (test::device().is_cpu())
    if (test::device().is_cpu())
      CHECK_THAT(warning, contains("the run so far used " + std::to_string(threads) + " threads, now " + std::to_string(threads + 1)));
    else
      CHECK(warning.empty());  // of no meaning on a GPU
  else
    CHECK(warning.empty());  // they change nothing there
}

TEST_CASE("a last batch of one is left out, whatever the norm; smaller ones are not (G01)", "[train][trainer]") {
  const auto batches_of = [](int64_t count, int64_t size) { return trained_batches(data::Loader(small_data(count, 1), {.batch_size = size})); };
  CHECK(batches_of(101, 10) == 10);
  CHECK(batches_of(102, 10) == 11);
  CHECK(batches_of(100, 10) == 10);
  CHECK(batches_of(5, 1) == 5);
  CHECK(batches_of(1, 8) == 1);
  CHECK(batches_of(5, 8) == 1);  // G02: one batch of five
  for (const char* norm : {"none", "layer", "batch"}) {
    nn::Sequential model = small_model(norm);
    optim::Adam adam(model.parameters());
    data::Loader batches(small_data(101, 1), {.batch_size = 10});
    Classification task(model, batches, {.device = test::device()});
    task.add_split("test", small_data(101, 1));
    Trainer trainer(task, adam, {.epochs = 2});
    CHECK(trainer.fit() == Outcome::finished);
    CHECK(trainer.state().samples == 200);
    CHECK(trainer.state().step == 20);
    CHECK(trainer.state().splits[0].last.count == 101);
    CHECK_NOTHROW(require_finite(model));
  }
}

TEST_CASE("a loss that is not finite stops with step, layer and advice; the disk keeps finite weights (D12)", "[train][trainer]") {
  const TempDir dir;
  for (const char* norm : {"none", "layer", "batch"}) {
    nn::Sequential model = small_model(norm, 0);
    optim::SGD sgd(model.parameters(), {.lr = 1e30});
    data::Loader batches(small_data(40, 1), {.batch_size = 8});
    Classification task(model, batches, {.device = test::device()});
    Trainer trainer(task, sgd, {.epochs = 3, .checkpoint_every = 1, .folder = dir.path()});
    save_checkpoint(dir / "last.safetensors", model, sgd);
    CHECK_THROWS_WITH(trainer.fit(), contains("[train] step ") && contains("(epoch ") && contains("lower the learning rate (now 1e+30)"));
    CHECK(trainer.state().step <= 10);
    for (const auto& [name, tensor] : io::read_safetensors(dir / "last.safetensors").tensors)
      for (const double value : test::values(tensor)) REQUIRE(std::isfinite(value));
  }
}

TEST_CASE("the loss is looked at in every step, before the update (D12)", "[train][trainer]") {
  nn::Sequential model = small_model("none", 0);
  optim::SGD sgd(model.parameters(), {.lr = 1e30});
  data::Loader batches(small_data(80, 1), {.batch_size = 8});
  Classification task(model, batches, {.device = test::device()});
  Trainer trainer(task, sgd);
  CHECK_THROWS_WITH(trainer.fit(), contains("[train] step 2 (epoch 1): the loss is ") && contains("first not finite: layer "));
  CHECK(trainer.state().step == 1);
  CHECK_NOTHROW(require_finite(model));
}

TEST_CASE("the first layer that is not finite is named", "[train][trainer]") {
  data::Loader batches(small_data(8, 1), {.batch_size = 8});
  nn::Sequential model = nn::MLP({.sizes = {16, 12, 8, 3}, .norm = "batch"});  // 0 Linear 1 BatchNorm 2 ReLU 3 Linear 4 BatchNorm 5 ReLU 6 Linear
  Classification task(model, batches, {.device = test::device()});
  task.seek(0, 0);
  const auto with = [&](const char* path, float value) {
    test::init(model, 1);
    for (auto& [name, parameter] : model.named_parameters())
      if (name == path) parameter->set(test::full(parameter->shape(), value));
    return first_non_finite(task);
  };
  CHECK_THAT(with("none", 0), contains("nothing in the forward pass"));
  CHECK_THAT(with("3.weight", 3e38F), contains("layer 3 (Linear(12 -> 8)"));
  CHECK_THAT(with("4.weight", 3e38F), contains("layer 4 (BatchNorm1d"));
  CHECK_THAT(with("6.bias", NAN), contains("the parameter 6.bias itself"));
  for (const auto& [path, buffer] : model.named_buffers())  // the replay leaves no trace
    CHECK(test::norm_of(buffer->tensor()) == (path.ends_with("var") ? std::sqrt(static_cast<double>(buffer->tensor().numel())) : 0));

  nn::Sequential plain(nn::Linear(16, 3), nn::Function("Log", [](const Tensor& x) { return log(x * 0.0); }));
  test::init(plain, 1);
  Classification logs(plain, batches, {.device = test::device()});
  logs.seek(0, 0);
  CHECK_THAT(first_non_finite(logs), contains("op log after layer 0 (Linear(16 -> 3)"));

  data::Dataset bad = small_data(8, 1);
  bad.images = bad.images.cast(DType::f32);
  bad.images.mutable_data<float>()[5] = NAN;
  data::Loader bad_batches(bad, {.batch_size = 8});
  Classification of_nan(model, bad_batches, {.device = test::device()});
  test::init(model, 1);
  of_nan.seek(0, 0);
  CHECK_THAT(first_non_finite(of_nan), contains("the batch, as an input of op linear"));
}

TEST_CASE("a gradient that is not finite stops before the step when asked for, and where its norm is taken anyway", "[train][trainer]") {
  const TrainerOptions options = GENERATE(TrainerOptions{.check_gradients = true}, TrainerOptions{.clip_norm = 1});
  nn::Sequential model = small_model("none", 0);
  optim::SGD sgd(model.parameters());
  data::Loader batches(small_data(8, 1), {.batch_size = 8});
  model.parameters()[0]->tensor().register_hook([](const Tensor& g) { return g * HUGE_VAL; });
  const std::vector<float> before = model.parameters()[2]->tensor().to_vector<float>();
  Classification task(model, batches, {.device = test::device()});
  Trainer trainer(task, sgd, options);
  CHECK_THROWS_WITH(trainer.fit(), contains("step 1 (epoch 1)") && contains("but a gradient is not finite") && contains("so a gradient"));
  CHECK(model.parameters()[2]->tensor().to_vector<float>() == before);
}

TEST_CASE("patience ends a run, and stays ended when it is resumed", "[train][trainer]") {
  const TempDir dir;
  const auto session = [&](int64_t epochs) {
    return std::make_unique<Session>(dir.path(), TrainerOptions{.epochs = epochs, .patience = 2});  // its schedule ends at rate 0
  };
  auto run = session(100);
  CHECK(run->trainer->fit() == Outcome::stopped_early);
  const int64_t ended = run->trainer->state().epoch;
  CHECK(ended < 100);
  CHECK(run->trainer->state().splits[0].best.waited == 2);
  CHECK(run->trainer->state().splits[0].best.step == (ended - 2) * 7);
  run.reset();
  run = session(100);
  CHECK(run->trainer->fit() == Outcome::stopped_early);
  CHECK(run->trainer->state().epoch == ended);
}

TEST_CASE("clipping and the schedule reach the optimiser", "[train][trainer]") {
  const auto moved = [](TrainerOptions options) {
    nn::Sequential model = small_model("none", 0);
    optim::SGD sgd(model.parameters(), {.lr = 1.0});
    data::Loader batches(small_data(8, 1), {.batch_size = 8});
    std::vector<Tensor> before;
    for (nn::Parameter* p : model.parameters()) before.push_back(p->tensor().clone());
    Classification task(model, batches, {.device = test::device()});
    Trainer(task, sgd, std::move(options)).fit();
    double squares = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const auto a = test::values(before[i]), b = test::values(model.parameters()[i]->tensor());
      for (size_t j = 0; j < a.size(); ++j) squares += (a[j] - b[j]) * (a[j] - b[j]);
    }
    return std::sqrt(squares);
  };
  const double free = moved({});
  CHECK(free > 0.05);
  CHECK(std::abs(moved({.clip_norm = 0.01}) - 0.01) < 1e-5);  // PyTorch's 1e-6 beside the norm, and rounding
  CHECK(std::abs(moved({.schedule = optim::Schedule::parse("warmup=4,constant")}) - free / 4) < 1e-5 * free);
}

TEST_CASE("in the steady state no tensor memory comes from the system", "[train][trainer][pool]") {
  nn::Sequential model = small_model();
  optim::Adam adam(model.parameters());
  data::Loader batches(small_data(200, 1), {.batch_size = 8});
  std::vector<int64_t> allocations;
  TrainerOptions options{.epochs = 6};
  options.before_evaluation = [&] { allocations.push_back(memory_stats(test::device()).system_allocations); };
  Classification task(model, batches, {.device = test::device()});
  task.add_split("test", small_data(30, 3));
  Trainer trainer(task, adam, options);
  trainer.fit();
  REQUIRE(allocations.size() == 6);
  for (size_t epoch = 3; epoch < 6; ++epoch) CHECK(allocations[epoch] == allocations[2]);
}

TEST_CASE("options out of range are refused by name", "[train][trainer]") {
  nn::Sequential model = small_model();
  optim::Adam adam(model.parameters());
  data::Loader batches(small_data(8, 1), {.batch_size = 8});
  Classification task(model, batches, {.device = test::device()});
  CHECK_THROWS_WITH(Trainer(task, adam, {.epochs = -1}), contains("epochs: expected at least 0, got -1"));
  CHECK_THROWS_WITH(Trainer(task, adam, {.steps = -1}), contains("steps: expected at least 0, got -1"));
  CHECK_THROWS_WITH(Trainer(task, adam, {.clip_norm = -1}), contains("clip_norm"));
  CHECK_THROWS_WITH(Trainer(task, adam, {.clip_norm = std::nan("")}), contains("clip_norm"));
  CHECK_THROWS_WITH(Classification(model, batches, {.eval_batch_size = 0}), contains("eval_batch_size"));
}

TEST_CASE("steps end a run inside an epoch; more of them go on bitwise", "[train][trainer]") {
  const TempDir dir;
  Session(dir / "whole", {.epochs = 3}).trainer->fit();
  for (const int64_t steps : {1, 7, 10, 20}) {
    const fs::path parts = dir / std::to_string(steps);
    Session first(parts, {.epochs = 3, .steps = steps});
    CHECK(first.trainer->fit() == Outcome::finished);
    CHECK(first.trainer->state().step == steps);
    CHECK_THAT(rows(parts), contains("\n" + std::to_string(steps) + ","));
  }
  for (const int64_t steps : {1, 7, 10, 20}) {
    const fs::path parts = dir / std::to_string(steps);
    CHECK(Session(parts, {.epochs = 3}).trainer->fit() == Outcome::finished);
    CHECK(same_tensors(dir / "whole/last.safetensors", parts / "last.safetensors"));
  }
}
