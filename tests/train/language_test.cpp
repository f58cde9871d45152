#include <lamina/train/language_task.h>

#include <cmath>
#include <csignal>

#include <lamina/autograd/graph.h>
#include <lamina/core/memory.h>
#include <lamina/ops/loss.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/train/stop.h>

#include "train/small_run.h"

using namespace lamina;
using namespace lamina::train;
namespace fs = std::filesystem;
using support::get;
using support::TempDir;
using test::rows;
using test::same_tensors;

namespace {

std::string corpus(int64_t words) {
  const char* const list[] = {"the ", "cat ", "sat ", "on ", "a ", "mat. "};
  Rng rng(4);
  std::string text;
  for (int64_t i = 0; i < words; ++i) text += list[rng.below(6)];
  return text;
}

SequenceModelOptions small_options(RecurrentCell cell, const std::string& norm, int64_t vocabulary, double dropout = 0.2) {
  SequenceModelOptions options;
  options.cell = cell;
  options.layers.hidden = 12;
  options.layers.layers = 2;
  options.layers.norm = norm;
  options.layers.dropout = dropout;
  options.vocabulary = options.outputs = vocabulary;
  options.embedding = 6;
  return options;
}

/// One session of a run in a folder: made, perhaps resumed.
struct Session {
  std::string text = corpus(150);
  data::Vocabulary vocabulary = data::Vocabulary::of(text, data::TextUnit::character);
  SequenceModel model;
  optim::Adam adam;
  LanguageTask task;
  RunLog log;
  std::unique_ptr<Trainer> trainer;

  Session(const fs::path& folder, TrainerOptions options, RecurrentCell cell = RecurrentCell::lstm, const std::string& norm = "layer",
          int64_t streams = 4)
      : model(small_options(cell, norm, vocabulary.size())),
        adam((test::init(model, 3), model.parameters()), {.lr = 0.01}),
        task(model, vocabulary,
             data::TextBatches(std::make_shared<const std::vector<int32_t>>(vocabulary.encode(text, "")),
                               {.batch_size = streams, .steps = 10, .seed = 5}),
             test::device()),
        log(folder, {.app = "test", .config = {{"norm", norm}}, .seed = 5}) {
    options.schedule = optim::Schedule::parse("warmup=3,cosine:200");
    options.folder = folder;
    options.log = &log;
    options.clip_norm = 1;
    task.add_split("validation", vocabulary.encode(corpus(40), ""));
    trainer = std::make_unique<Trainer>(task, adam, std::move(options));
    if (fs::exists(folder / "last.safetensors")) trainer->resume(folder / "last.safetensors");
    log.start(trainer->state().step);
  }
};

}  // namespace

TEST_CASE("a language model learns, and judges by all symbols of the validation text", "[train][language]") {
  const TempDir dir;
  Session run(dir.path(), {.epochs = 12});
  CHECK(run.trainer->fit() == Outcome::finished);
  const TrainState& state = run.trainer->state();
  CHECK(state.samples == 12 * run.task.batches() * 40);
  CHECK(state.splits[0].last.count == static_cast<int64_t>(corpus(40).size()) - 1);
  // Words are drawn evenly: ln 6 nats for about four characters. A model of single letters has 2.4 nats.
  CHECK(state.splits[0].last["nll"] < 1.2);
  CHECK(std::abs(state.splits[0].last["bpc"] - state.splits[0].last["nll"] / std::log(2.0)) < 1e-12);
  CHECK(std::abs(state.splits[0].last["perplexity"] - std::exp(state.splits[0].last["nll"])) < 1e-12);
  CHECK_THAT(run.task.summary(state.splits[0].last), contains("bits per character, perplexity "));
  CHECK_THAT(get(dir / "metrics.csv"), contains(",validation,bpc,"));
}

TEST_CASE("resumed inside an epoch it is bitwise the uninterrupted run, carried state included (F12)", "[train][language]") {
  const TempDir dir;
  for (const auto& [cell, norm] : {std::pair{RecurrentCell::lstm, "layer"}, {RecurrentCell::gru, "none"}}) {
    const fs::path whole = dir / ("whole" + std::string(norm)), parts = dir / ("parts" + std::string(norm));
    Session(whole, {.epochs = 2, .eval_every = 5}, cell, norm).trainer->fit();
    const int64_t batches = Session(dir / ("size" + std::string(norm)), {}, cell, norm).task.batches();
    REQUIRE(batches > 8);
    for (const int64_t steps : {3L, batches, batches + 7}) Session(parts, {.epochs = 2, .steps = steps, .eval_every = 5}, cell, norm).trainer->fit();
    const io::Safetensors middle = io::read_safetensors(parts / "last.safetensors");
    const nn::StateDict carried = checkpoint_state(middle);
    REQUIRE(carried.size() == (cell == RecurrentCell::lstm ? 2 : 1));
    CHECK(carried[0].second.shape() == Shape{2, 4, 12});
    CHECK(test::norm_of(carried[0].second) > 0);
    Session(parts, {.epochs = 2, .eval_every = 5}, cell, norm).trainer->fit();
    CHECK(same_tensors(whole / "last.safetensors", parts / "last.safetensors"));
  }
}

TEST_CASE("a signal stops it, and the rest is bitwise the same, rows too (G04)", "[train][language]") {
  const TempDir dir;
  Session(dir / "whole", {.epochs = 2, .eval_every = 4}).trainer->fit();
  {
    const StopOnSignal signals;
    TrainerOptions options{.epochs = 2, .eval_every = 4};
    int evaluations = 0;
    options.before_evaluation = [&] {
      if (++evaluations == 2) std::raise(SIGINT);
    };
    Session first(dir / "parts", options);
    CHECK(first.trainer->fit() == Outcome::interrupted);
    CHECK(first.trainer->state().step == 9);  // raised in the evaluation after step 8
  }
  CHECK(Session(dir / "parts", {.epochs = 2, .eval_every = 4}).trainer->fit() == Outcome::finished);
  CHECK(same_tensors(dir / "whole/last.safetensors", dir / "parts/last.safetensors"));
  CHECK(rows(dir / "whole") == rows(dir / "parts"));
  CHECK(get(dir / "whole/best.safetensors") == get(dir / "parts/best.safetensors"));
}

TEST_CASE("the carried state has no history: nodes and memory stay what they are (B07)", "[train][language]") {
  const std::string text = corpus(2000);
  const data::Vocabulary vocabulary = data::Vocabulary::of(text, data::TextUnit::character);
  SequenceModel model(small_options(RecurrentCell::lstm, "layer", vocabulary.size()));
  test::init(model, 1);
  optim::Adam adam(model.parameters());
  LanguageTask task(model, vocabulary,
                    data::TextBatches(std::make_shared<const std::vector<int32_t>>(vocabulary.encode(text, "")), {.batch_size = 2, .steps = 4}),
                    test::device());
  task.seek(0, 0);
  std::vector<int64_t> nodes, bytes;
  for (int64_t i = 0; i < 900; ++i) {
    adam.zero_grad();
    Task::Loss loss = task.loss();
    loss.value.backward();
    adam.step();
    loss = {};
    task.next();
    nodes.push_back(autograd::live_nodes());
    bytes.push_back(memory_stats(test::device()).current_bytes);
  }
  CHECK(nodes[50] == nodes[899]);
  CHECK(bytes[50] == bytes[899]);
  CHECK(nodes[899] == 0);
  for (const auto& [name, tensor] : task.state()) {
    CHECK_FALSE(tensor.requires_grad());
    CHECK(test::norm_of(tensor) > 0);  // values kept
  }
}

TEST_CASE("the state runs on: two batches in a row are one long one, and an epoch begins with zeros", "[train][language]") {
  const std::string text = corpus(60);
  const data::Vocabulary vocabulary = data::Vocabulary::of(text, data::TextUnit::byte);
  SequenceModel model(small_options(RecurrentCell::gru, "none", vocabulary.size(), 0));
  test::init(model, 1);
  const auto ids = std::make_shared<const std::vector<int32_t>>(vocabulary.encode(text, ""));
  LanguageTask task(model, vocabulary, data::TextBatches(ids, {.batch_size = 2, .steps = 6}), test::device());
  task.seek(0, 0);
  const double first = task.loss().value.item();
  CHECK(task.loss().value.item() == first);  // the same when called again
  task.next();
  const double second = task.loss().value.item();
  const data::TextBatches batches(ids, {.batch_size = 2, .steps = 6});
  const data::TextBatch a = batches.batch(0, 0), b = batches.batch(0, 1);
  nn::RecurrentState state;
  const NoGrad guard;
  const double whole = cross_entropy(model.steps(test::on_device(concat({a.x, b.x})), state), test::on_device(concat({a.y, b.y}))).item();
  CHECK(std::abs(whole - (first + second) / 2) < test::f32_sum);
  task.seek(0, 0);
  CHECK(task.loss().value.item() == first);

  // Evaluation sees every target once, in streams that begin with zeros.
  const auto few = std::vector<int32_t>(ids->begin(), ids->begin() + 24);  // 23 targets: streams of 12 and 11
  const Scores scores = evaluate_text(model, few, 2, 5, test::device());
  CHECK(scores.count == 23);
  double sum = 0;
  for (const auto& [begin, end] : {std::pair{0, 12}, {12, 23}}) {
    nn::RecurrentState from_zero;
    const std::vector<int64_t> x(few.begin() + begin, few.begin() + end), y(few.begin() + begin + 1, few.begin() + end + 1);
    const auto count = static_cast<int64_t>(x.size());
    sum += cross_entropy(model.steps(test::tensor(x, {count, 1}), from_zero), test::tensor(y, {count, 1}), {.reduction = Reduction::sum}).item();
  }
  CHECK(std::abs(scores["nll"] - sum / 23) < test::f32_sum);
  CHECK(evaluate_text(model, few, 100, 50, test::device()).count == 23);  // one stream
}

TEST_CASE("what belongs to another text, model or run is refused", "[train][language]") {
  const TempDir dir;
  Session(dir / "run", {.epochs = 1, .steps = 5}).trainer->fit();
  const std::string bytes = get(dir / "run/last.safetensors");
  const auto refused = [&](Session& other, const std::string& text) {
    CHECK_THROWS_WITH(other.trainer->resume(dir / "run/last.safetensors"), contains("last.safetensors") && contains(text));
    CHECK(other.trainer->state().step == 0);
    CHECK(other.task.state().empty());
  };
  Session narrow(dir / "narrow", {}, RecurrentCell::lstm, "layer", 3);
  refused(narrow, "data.batch_size is 4 there, 3 here");
  Session plain(dir / "plain", {}, RecurrentCell::lstm, "none");
  refused(plain, "architecture");
  Session gru(dir / "gru", {}, RecurrentCell::gru, "layer");
  CHECK_THROWS_AS(gru.trainer->resume(dir / "run/last.safetensors"), InputError);
  CHECK(gru.task.state().empty());
  CHECK(get(dir / "run/last.safetensors") == bytes);

  Session again(dir / "again", {});
  CHECK_THROWS_WITH(again.task.load_state({{"h", Tensor::zeros({2, 4, 13})}}), contains("state h: expected [2, 4, 12], got [2, 4, 13]"));
  CHECK_THROWS_WITH(again.task.load_state({{"h", Tensor::zeros({2, 4, 12})}}), contains("c is missing"));
  CHECK_THROWS_WITH(again.task.load_state({{"x", Tensor::zeros({2, 4, 12})}}), contains("expected h and c, got 'x'"));
  CHECK_THROWS_WITH(again.task.add_split("test", {1}), contains("test: expected at least 2 symbols, got 1"));
  SequenceModelOptions both = small_options(RecurrentCell::lstm, "none", again.vocabulary.size());
  both.layers.bidirectional = true;
  SequenceModel two_ways(both);
  const auto ids = std::make_shared<const std::vector<int32_t>>(100, 0);
  CHECK_THROWS_WITH(LanguageTask(two_ways, again.vocabulary, data::TextBatches(ids, {})), contains("expected one direction, got two"));
  SequenceModel small(small_options(RecurrentCell::lstm, "none", 3));
  CHECK_THROWS_WITH(LanguageTask(small, again.vocabulary, data::TextBatches(ids, {})), contains("model: expected a vocabulary and outputs of"));
}
