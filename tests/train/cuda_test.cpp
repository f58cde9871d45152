// Training on a device that nobody waits for: when the loss is looked at, CUDA graphs, checkpoints that change devices. On the CPU the same holds.

#include <cmath>

#include <lamina/ops/elementwise.h>
#include <lamina/ops/reduce.h>
#include <lamina/train/language_task.h>

#include "train/small_run.h"

using namespace lamina;
using namespace lamina::train;
namespace fs = std::filesystem;
using support::TempDir;
using test::device;
using test::rows;
using test::same_tensors;
using test::Session;
using test::small_data;
using test::small_model;

namespace {

/// Symbols of which each follows from the last two, mostly.
std::vector<int32_t> symbols(int64_t count) {
  Rng rng(8);
  std::vector<int32_t> text{0, 1};
  while (static_cast<int64_t>(text.size()) < count)
    text.push_back(rng.below(5) == 0 ? static_cast<int32_t>(rng.below(4)) : (text.back() + text[text.size() - 2]) % 4);
  return text;
}

/// Trains a small LSTM with dropout between its layers on a text; returns its weights.
nn::StateDict trained_on_text(bool graph, int64_t* graph_steps = nullptr) {
  const data::Vocabulary vocabulary = data::Vocabulary::of("abcd", data::TextUnit::character);
  SequenceModelOptions options;
  options.layers = {.input = 0, .hidden = 6};
  options.layers.layers = 2;
  options.layers.dropout = 0.3;
  options.vocabulary = options.outputs = 4;
  options.embedding = 3;
  SequenceModel model(options);
  test::init(model, 2);
  optim::Adam adam(model.parameters(), {.lr = 0.01});
  LanguageTask task(model, vocabulary,
                    data::TextBatches(std::make_shared<const std::vector<int32_t>>(symbols(203)), {.batch_size = 2, .steps = 10, .seed = 3}),
                    device());
  Trainer trainer(task, adam, {.epochs = 2, .clip_norm = 0.5, .cuda_graph = graph});
  trainer.fit();
  if (graph_steps) *graph_steps = trainer.graph_steps();
  nn::StateDict state = model.state_dict();
  for (auto& [name, tensor] : state) tensor = tensor.to(Device::cpu()).clone();
  return state;
}

}  // namespace

TEST_CASE("how often the loss is looked at changes nothing", "[train][cuda]") {
  const TempDir dir;
  for (const int64_t every : {1, 3, 50})
    Session(dir / std::to_string(every), {.epochs = 3, .eval_every = 5, .clip_norm = 0.5, .read_every = every}).trainer->fit();
  for (const char* other : {"3", "50"}) {
    CHECK(same_tensors(dir / "1/last.safetensors", dir / other / "last.safetensors"));
    CHECK(rows(dir / "1") == rows(dir / other));
  }
  nn::Sequential model = small_model();
  optim::Adam adam(model.parameters());
  data::Loader batches(small_data(8, 1), {.batch_size = 8});
  Classification task(model, batches, {.device = device()});
  CHECK_THROWS_WITH(Trainer(task, adam, {.read_every = 0}), contains("read_every: expected at least 1, got 0"));
}

TEST_CASE("a step that is not finite is named exactly, however late it is seen", "[train][cuda]") {
  for (const bool graph : {false, true}) {
    if (graph && device().is_cpu()) continue;
    nn::Sequential model = small_model("none", 0);
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    data::Dataset data = small_data(80, 1);
    data.images = data.images.cast(DType::f32);
    float* const pixels = data.images.mutable_data<float>();
    for (int64_t i = 48; i < 56; ++i) pixels[i * 16 + 3] = NAN;  // the seventh batch
    data::Loader batches(data, {.batch_size = 8, .shuffle = false});
    Classification task(model, batches, {.device = device()});
    Trainer trainer(task, sgd, {.epochs = 1, .cuda_graph = graph});
    CHECK_THROWS_WITH(trainer.fit(), contains("[train] step 7 (epoch 1): the loss is nan") && contains("the batch, as an input of op linear"));
    CHECK(trainer.state().step == 6);
    CHECK(trainer.state().batch == 6);
    CHECK(trainer.state().samples == 48);
    CHECK(trainer.state().loss.count == 48);
    CHECK(std::isfinite(trainer.state().loss.value()));
    CHECK_NOTHROW(require_finite(model));
  }
}

TEST_CASE("queued steps clip and count as steps that are waited for do", "[train][cuda]") {
  nn::Sequential a = small_model("layer", 0), b = small_model("layer", 0);
  optim::Adam adam_a(a.parameters(), {.lr = 0.01}), adam_b(b.parameters(), {.lr = 0.01});
  const Tensor x = test::normal({8, 16}, 1), w = test::normal({8, 3}, 2);
  double losses = 0;
  for (int step = 0; step < 3; ++step) {
    adam_a.zero_grad();
    adam_b.zero_grad();
    sum(a(x) * w).backward();
    Tensor loss = sum(b(x) * w);
    loss.backward();
    losses += loss.item() * 8;
    CHECK(optim::clip_grad_norm(a.parameters(), 0.1) > 0.1);
    adam_a.step();
    adam_b.queue_step({loss, 8, 0.1});
  }
  const optim::Optimizer::Progress progress = adam_b.progress();
  CHECK((progress.steps == 3 && progress.finite && progress.loss_sum == losses));
  const nn::StateDict state_a = a.state_dict(), state_b = b.state_dict();
  for (size_t i = 0; i < state_a.size(); ++i) test::check_close(state_a[i].second, test::values(state_b[i].second), 1e-6);  // f32, lr 0.01

  // One that is not finite changes nothing, nor do those after it, until restart().
  const std::vector<double> before = test::values(b.parameters()[0]->tensor());
  adam_b.queue_step({test::full({}, NAN), 8, 0});
  adam_b.queue_step({test::full({}, 1.0), 8, 0});
  const optim::Optimizer::Progress bad = adam_b.progress();
  CHECK((bad.steps == 3 && !bad.finite && bad.at_loss && std::isnan(bad.loss) && bad.loss_sum == losses));
  CHECK(test::values(b.parameters()[0]->tensor()) == before);
  CHECK(adam_b.state()[0].second.item() == 3);
  adam_b.restart();
  CHECK(adam_b.step());
  CHECK(test::values(b.parameters()[0]->tensor()) != before);
  CHECK(adam_b.progress().steps == 4);
}

TEST_CASE("a checkpoint goes from device to device, bit for bit", "[train][cuda]") {
  const TempDir dir;
  Session(dir / "run", {.epochs = 2}).trainer->fit();
  nn::Sequential model = nn::MLP({.sizes = {16, 12, 8, 3}, .norm = "batch", .dropout = 0.2});  // on the CPU
  model.init(9);
  optim::Adam adam(model.parameters());
  load_checkpoint(dir / "run/last.safetensors", model, adam);
  save_checkpoint(dir / "again.safetensors", model, adam);
  data::Loader batches(small_data(53, 1), {.batch_size = 8, .shuffle_seed = 5});
  Classification task(model, batches);
  task.add_split("validation", small_data(21, 2));
  task.add_split("test", small_data(30, 3));
  const std::string warning = Trainer(task, adam).resume(dir / "run/last.safetensors");
  CHECK(warning ==
        (device().is_cpu() ? "" : "the run so far was on cuda, now on cpu: results will differ in the last digits from an uninterrupted run"));
  model.to(device());
  save_checkpoint(dir / "moved.safetensors", model, adam);
  CHECK(same_tensors(dir / "again.safetensors", dir / "run/last.safetensors"));
  CHECK(same_tensors(dir / "moved.safetensors", dir / "run/last.safetensors"));
}

TEST_CASE("steps that run as a CUDA graph give the bits of plain ones", "[train][cuda]") {
  if (device().is_cpu()) {
    nn::Sequential model = small_model();
    optim::Adam adam(model.parameters());
    data::Loader batches(small_data(8, 1), {.batch_size = 8});
    Classification task(model, batches);
    Trainer trainer(task, adam, {.cuda_graph = true});
    CHECK_THROWS_WITH(trainer.fit(), contains("[trainer] cuda_graph: expected a model on a GPU, got one on the CPU"));
    return;
  }
  const TempDir dir;
  for (const char* norm : {"batch", "layer"}) {  // with dropout, a schedule, and a smaller last batch
    const fs::path plain = dir / norm / "plain", graph = dir / norm / "graph", parts = dir / norm / "parts";
    Session(plain, {.epochs = 4, .eval_every = 5, .clip_norm = 0.5}, norm).trainer->fit();
    Session with(graph, {.epochs = 4, .eval_every = 5, .clip_norm = 0.5, .cuda_graph = true}, norm);
    with.trainer->fit();
    CHECK(with.trainer->graph_steps() == 4 * 6 - 3);
    CHECK(same_tensors(plain / "last.safetensors", graph / "last.safetensors"));
    CHECK(rows(plain) == rows(graph));
    Session(parts, {.epochs = 2, .eval_every = 5, .clip_norm = 0.5, .cuda_graph = true}, norm).trainer->fit();
    Session(parts, {.epochs = 4, .eval_every = 5, .clip_norm = 0.5, .cuda_graph = true}, norm).trainer->fit();
    CHECK(same_tensors(plain / "last.safetensors", parts / "last.safetensors"));
  }
}

TEST_CASE("a text's state is carried from one run of a CUDA graph to the next", "[train][cuda]") {
  int64_t graph_steps = 0;
  const nn::StateDict plain = trained_on_text(false), graph = trained_on_text(!device().is_cpu(), &graph_steps);
  if (!device().is_cpu()) CHECK(graph_steps == 2 * 9 - 3);  // the first batch of an epoch has no state
  REQUIRE(plain.size() == graph.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    INFO(plain[i].first);
    CHECK(test::same_bits(plain[i].second, graph[i].second));
  }
}
