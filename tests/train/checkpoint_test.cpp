#include <lamina/ops/loss.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/train/checkpoint.h>

#include <cmath>

#include "support/golden.h"
#include "train/small_run.h"

using namespace lamina;
using namespace lamina::train;
using support::get;
using support::put;
using support::TempDir;
using test::same_bits;
using test::small_model;

namespace {

// Some steps, so that moments and statistics are no longer what they start as.
void train_a_little(nn::Sequential& model, optim::Optimizer& optimizer) {
  data::Loader batches(test::small_data(40, 8), {.batch_size = 8});
  Classification task(model, batches, {.device = test::device()});
  Trainer(task, optimizer, {.epochs = 1}).fit();
}

nn::StateDict copy_of(const nn::StateDict& state) {
  nn::StateDict copy;
  for (const auto& [name, tensor] : state) copy.emplace_back(name, tensor.clone());
  return copy;
}

bool same(const nn::StateDict& a, const nn::StateDict& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].first != b[i].first || !same_bits(a[i].second, b[i].second)) return false;
  return true;
}

}  // namespace

TEST_CASE("a checkpoint brings back model, optimiser and metadata, bit for bit", "[train][checkpoint]") {
  const TempDir dir;
  nn::Sequential model = small_model();
  optim::Adam adam(model.parameters());
  train_a_little(model, adam);
  save_checkpoint(dir / "c.safetensors", model, adam, {{"note", "x = \"1\""}});

  nn::Sequential other = small_model();
  optim::Adam other_adam(other.parameters());
  REQUIRE_FALSE(same(other.state_dict(), model.state_dict()));
  const Metadata metadata = load_checkpoint(dir / "c.safetensors", other, other_adam);
  CHECK(metadata.at("note") == "x = \"1\"");
  CHECK(same(other.state_dict(), model.state_dict()));
  CHECK(same(other_adam.state(), adam.state()));
  CHECK(adam.state().size() > 3);
}

TEST_CASE("weights have plain names, and go there and back", "[train][checkpoint]") {
  const TempDir dir;
  nn::Sequential model = small_model();
  save_weights(dir / "w.safetensors", model);
  const io::Safetensors file = io::read_safetensors(dir / "w.safetensors");
  CHECK(file.find("0.weight"));
  CHECK(file.find("1.running_mean"));
  CHECK(file.find("1.num_batches_tracked"));
  nn::Sequential other = nn::MLP({.sizes = {16, 12, 8, 3}, .norm = "batch", .dropout = 0.2});  // not initialised: loading does
  load_weights(dir / "w.safetensors", other);
  CHECK(same(other.state_dict(), model.state_dict()));
}

TEST_CASE("another architecture is refused by tensor and shape, and nothing changes (F11)", "[train][checkpoint]") {
  const TempDir dir;
  nn::Sequential wide = nn::MLP({.sizes = {16, 64, 3}, .norm = "layer"}), narrow = nn::MLP({.sizes = {16, 32, 3}, .norm = "layer"});
  test::init(wide, 1);
  test::init(narrow, 2);
  optim::Adam wide_adam(wide.parameters()), narrow_adam(narrow.parameters());
  train_a_little(narrow, narrow_adam);
  save_checkpoint(dir / "wide", wide, wide_adam);
  save_weights(dir / "weights", wide);
  const auto model_before = copy_of(narrow.state_dict()), moments_before = copy_of(narrow_adam.state());
  CHECK_THROWS_AS(load_checkpoint(dir / "wide", narrow, narrow_adam), InputError);
  CHECK_THROWS_WITH(load_checkpoint(dir / "wide", narrow, narrow_adam), contains("0.weight: expected [32, 16], got [64, 16]"));
  CHECK_THROWS_WITH(load_weights(dir / "weights", narrow),
                    contains("weights") && contains("0.weight") && contains("[32, 16]") && contains("[64, 16]"));

  // The same tensors, other layers between them.
  nn::Sequential tanh = nn::MLP({.sizes = {16, 32, 3}, .norm = "layer", .activation = "tanh"});
  test::init(tanh, 2);
  optim::Adam tanh_adam(tanh.parameters());
  save_checkpoint(dir / "tanh", tanh, tanh_adam);
  CHECK_THROWS_WITH(load_checkpoint(dir / "tanh", narrow, narrow_adam), contains("another architecture: '2 Tanh' there, '2 ReLU' here"));

  // Missing layers, and another optimiser.
  nn::Sequential batch = nn::MLP({.sizes = {16, 32, 3}, .norm = "batch"});
  test::init(batch, 2);
  optim::Adam batch_adam(batch.parameters());
  save_checkpoint(dir / "batch", batch, batch_adam);
  CHECK_THROWS_AS(load_checkpoint(dir / "batch", narrow, narrow_adam), InputError);
  nn::Sequential other = nn::clone(narrow);
  optim::SGD sgd(other.parameters(), {.momentum = 0.9});
  train_a_little(other, sgd);
  save_checkpoint(dir / "sgd", other, sgd);
  CHECK_THROWS_AS(load_checkpoint(dir / "sgd", narrow, narrow_adam), InputError);
  CHECK_THROWS_WITH(load_checkpoint(dir / "weights", narrow, narrow_adam), contains("not a checkpoint of lamina"));

  // The optimiser's part is right, the model's lacks a tensor.
  nn::Sequential more = nn::clone(narrow);
  optim::Adam more_adam(more.parameters());
  train_a_little(more, more_adam);
  save_checkpoint(dir / "lacking", more, more_adam);
  io::Safetensors lacking = io::read_safetensors(dir / "lacking");
  std::erase_if(lacking.tensors, [](const auto& entry) { return entry.first == "model.0.bias"; });
  io::write_safetensors(dir / "lacking", lacking);
  CHECK_THROWS_WITH(load_checkpoint(dir / "lacking", narrow, narrow_adam), contains("0.bias"));
  CHECK(same(narrow.state_dict(), model_before));
  CHECK(same(narrow_adam.state(), moments_before));
}

TEST_CASE("damage anywhere is refused and nothing changes (F11)", "[train][checkpoint]") {
  const TempDir dir;
  nn::Sequential model = small_model();
  optim::Adam adam(model.parameters());
  save_checkpoint(dir / "good", model, adam);
  const std::string good = get(dir / "good");
  train_a_little(model, adam);
  const auto model_before = copy_of(model.state_dict()), moments_before = copy_of(adam.state());
  std::vector<std::string> damaged{"", good.substr(0, 7), good.substr(0, good.size() - 1), good + "x"};
  Rng rng(9);
  for (int i = 0; i < 60; ++i) {  // any byte: lengths, names, values, the checksum itself
    std::string flipped = good;
    flipped[static_cast<size_t>(rng.below(static_cast<int64_t>(good.size())))] ^= static_cast<char>(1 << rng.below(8));
    damaged.push_back(flipped);
  }
  const std::string checksum_name = "lamina.crc32";  // without it nothing else would be noticed
  for (size_t i = 0; i < checksum_name.size(); ++i) {
    std::string flipped = good;
    flipped[good.find(checksum_name) + i] ^= 1;
    damaged.push_back(flipped);
  }
  for (const std::string& bytes : damaged) {
    put(dir / "bad", bytes);
    CHECK_THROWS_AS(load_checkpoint(dir / "bad", model, adam), InputError);
    CHECK_THROWS_AS(load_weights(dir / "bad", model, &adam), InputError);
  }
  CHECK_THROWS_AS(load_checkpoint(dir / "missing", model, adam), InputError);
  CHECK(same(model.state_dict(), model_before));
  CHECK(same(adam.state(), moments_before));
  CHECK_NOTHROW(load_checkpoint(dir / "good", model, adam));
  CHECK_FALSE(same(model.state_dict(), model_before));
}

TEST_CASE("a later format is refused", "[train][checkpoint]") {
  const TempDir dir;
  nn::Sequential model = small_model();
  optim::Adam adam(model.parameters());
  save_checkpoint(dir / "c", model, adam);
  io::Safetensors content = io::read_safetensors(dir / "c");
  content.metadata["lamina.checkpoint"] = "2";
  io::write_safetensors(dir / "c", content);
  CHECK_THROWS_WITH(load_checkpoint(dir / "c", model, adam), contains("format version: expected 1, got 2"));
  content.metadata["lamina.checkpoint"] = "1";
  content.tensors.emplace_back("stray", Tensor::zeros({2}));
  io::write_safetensors(dir / "c", content);
  CHECK_THROWS_WITH(load_checkpoint(dir / "c", model, adam), contains("'stray' belongs neither"));
}

TEST_CASE("values that are not finite do not reach the disk (D12)", "[train][checkpoint]") {
  const TempDir dir;
  nn::Sequential model = small_model();
  optim::Adam adam(model.parameters());
  save_checkpoint(dir / "c", model, adam);
  const std::string good = get(dir / "c");
  model.named_buffers()[0].buffer->tensor().fill_(std::nan(""));
  CHECK_THROWS_WITH(save_checkpoint(dir / "c", model, adam), contains("the buffer 1.running_mean holds values that are not finite"));
  CHECK_THROWS_WITH(save_weights(dir / "c", model), contains("not finite"));
  CHECK(get(dir / "c") == good);
}

TEST_CASE("PyTorch's weights load under its names", "[train][checkpoint]") {
  const TempDir dir;
  const test::Golden golden("mlp_batch");
  io::Safetensors file;
  for (const auto& [name, tensor] : golden.below("after.")) file.tensors.emplace_back(name, tensor);
  io::write_safetensors(dir / "w", file, {.checksum = false});
  nn::Sequential model = test::on_device(nn::MLP({.sizes = {10, 16, 12, 4}, .norm = "batch"}));
  load_weights(dir / "w", model);
  model.cast(DType::f64);
  load_weights(dir / "w", model);
  model.eval();
  const Tensor first = slice(reshape(golden("x"), {-1, 10}), 0, 0, 9);
  test::check_close(model(first).detach(), golden("eval_logits"), 1e-9);  // f64 on both sides; products summed in another order
}

TEST_CASE("what lamina saves has PyTorch's names, shapes, types and values", "[train][checkpoint]") {
  // The way back: PyTorch's state dict, loaded, saved, and read again, is the same entry for entry, bit for bit.
  const TempDir dir;
  for (const std::string norm : {"none", "layer", "batch"}) {
    INFO(norm);
    const auto torch = test::Golden("mlp_" + norm).below("after.");
    io::Safetensors file;
    for (const auto& [name, tensor] : torch) file.tensors.emplace_back(name, tensor);
    io::write_safetensors(dir / "torch", file);
    nn::Sequential model = test::on_device(nn::MLP({.sizes = {10, 16, 12, 4}, .norm = norm}));
    model.cast(DType::f64);
    load_weights(dir / "torch", model);
    save_weights(dir / "lamina", model);
    const io::Safetensors saved = io::read_safetensors(dir / "lamina");
    CHECK(saved.tensors.size() == torch.size());
    for (const auto& [name, tensor] : saved.tensors) {
      INFO(name);
      REQUIRE(torch.contains(name));
      CHECK(same_bits(tensor, torch.at(name)));
    }
  }
}

TEST_CASE("training goes on where PyTorch stopped, and PyTorch could go on where lamina stops", "[train][checkpoint]") {
  const TempDir dir;
  const test::Golden golden("resume");
  io::Safetensors torch;  // as scripts/pytorch_checkpoint.py writes it
  for (const auto& [name, tensor] : golden.below("half.")) torch.tensors.emplace_back(name, tensor);
  io::write_safetensors(dir / "torch", torch, {.checksum = false});
  nn::Sequential model = test::on_device(nn::MLP({.sizes = {10, 16, 12, 4}, .norm = "layer"}));
  model.cast(DType::f64);
  optim::Adam adam(model.parameters(), {.lr = 0.01, .weight_decay = 0.02});
  load_weights(dir / "torch", model, &adam);
  for (int step = 3; step < 6; ++step) {
    adam.zero_grad();
    cross_entropy(model(select(golden("x"), 0, step)), select(golden("labels"), 0, step)).backward();
    adam.step();
  }
  save_weights(dir / "lamina", model, {}, &adam);

  const auto expected = golden.below("end.");
  const io::Safetensors saved = io::read_safetensors(dir / "lamina");
  CHECK(saved.tensors.size() == expected.size());
  for (const auto& [name, tensor] : saved.tensors) {
    INFO(name);
    REQUIRE(expected.contains(name));
    REQUIRE(tensor.dtype() == expected.at(name).dtype());
    if (tensor.dtype() == DType::i64)
      CHECK(tensor.item() == 6);
    else
      test::check_close(tensor, expected.at(name), 1e-12);  // f64 on both sides; sums in another order
  }

  nn::Sequential plain = nn::MLP({.sizes = {10, 16, 12, 4}, .norm = "layer"});
  load_weights(dir / "lamina", plain);  // the optimiser's state is passed over
  save_weights(dir / "weights", plain);
  const auto before = copy_of(model.state_dict());
  CHECK_THROWS_WITH(load_weights(dir / "weights", model, &adam), contains("holds no state of an optimiser"));
  CHECK(same(model.state_dict(), before));
}
