#include <lamina/data/loader.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include <lamina/core/error.h>
#include <lamina/core/memory.h>
#include <lamina/core/random.h>

#include "support/catch.h"

using namespace lamina;
using data::Batch;
using data::Dataset;
using data::Loader;
using data::LoaderOptions;

namespace {

// u8 images [count, 2, 3] of random pixels; label i is i, so that labels show the order.
Dataset numbered(int64_t count) {
  Rng rng(7);
  return {randint({count, 2, 3}, 0, 256, rng).cast(DType::u8), Tensor::arange(count)};
}

std::vector<int64_t> order_of(Loader& loader) {
  std::vector<int64_t> order;
  for (auto [images, labels] : loader)
    for (int64_t label : labels.to_vector<int64_t>()) order.push_back(label);
  return order;
}

std::vector<int64_t> batch_sizes(Loader& loader) {
  std::vector<int64_t> sizes;
  for (auto [images, labels] : loader) {
    CHECK(images.size(0) == labels.size(0));
    sizes.push_back(labels.size(0));
  }
  return sizes;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.raw_data(), b.raw_data(), static_cast<size_t>(a.nbytes())) == 0;
}

std::vector<int64_t> upto(int64_t count) { return Tensor::arange(count).to_vector<int64_t>(); }

}  // namespace

TEST_CASE("loader: batches in the order of the data set, the last one smaller") {
  for (const bool prefetch : {true, false}) {
    Loader loader(numbered(10), {.batch_size = 4, .shuffle = false, .prefetch = prefetch});
    CHECK(loader.num_batches() == 3);
    CHECK(batch_sizes(loader) == std::vector<int64_t>{4, 4, 2});
    CHECK(order_of(loader) == upto(10));
  }
  Loader even(numbered(8), {.batch_size = 4, .shuffle = false});
  CHECK(batch_sizes(even) == std::vector<int64_t>{4, 4});
  Loader dropping(numbered(11), {.batch_size = 4, .shuffle = false, .drop_last = true});
  CHECK(dropping.num_batches() == 2);
  CHECK(order_of(dropping) == upto(8));
}

TEST_CASE("G01: a last batch of one is delivered, or dropped when asked to; no sample is lost otherwise") {
  for (const auto& [count, size] : {std::pair<int64_t, int64_t>{1001, 100}, {101, 100}, {601, 4}}) {
    Loader keep(numbered(count), {.batch_size = size});
    const auto sizes = batch_sizes(keep);
    CHECK(static_cast<int64_t>(sizes.size()) == count / size + 1);
    CHECK(sizes.back() == 1);
    CHECK(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == count);  // D10: what an epoch's mean is to be divided by
    Loader drop(numbered(count), {.batch_size = size, .drop_last = true});
    CHECK(batch_sizes(drop) == std::vector<int64_t>(static_cast<size_t>(count / size), size));
  }
}

TEST_CASE("G02: a batch size above the data set gives one smaller batch, or an error with drop_last") {
  Loader loader(numbered(5), {.batch_size = 8});
  CHECK(batch_sizes(loader) == std::vector<int64_t>{5});
  Loader huge(numbered(5), {.batch_size = std::numeric_limits<int64_t>::max()});
  CHECK(batch_sizes(huge) == std::vector<int64_t>{5});
  CHECK_THROWS_WITH(Loader(numbered(5), {.batch_size = 8, .drop_last = true}),
                    "[loader] batch_size: expected at most 5, the number of examples (drop_last is set), got 8");
}

TEST_CASE("loader: wrong options and data sets are refused") {
  CHECK_THROWS_WITH(Loader(numbered(5), {.batch_size = 0}), "[loader] batch_size: expected at least 1, got 0");
  CHECK_THROWS_AS(Loader(numbered(5), {.batch_size = -3}), InputError);
  CHECK_THROWS_WITH(Loader(numbered(5), {.dtype = DType::u8}), contains("dtype: expected f32 or f64, got u8"));
  CHECK_THROWS_WITH(Loader(numbered(5), {.scale = std::numeric_limits<double>::quiet_NaN()}), contains("scale and mean: expected finite"));
  CHECK_THROWS_WITH(Loader({Tensor::zeros({0, 4}), Tensor::arange(0)}, {}), contains("[dataset] expected at least one example"));
  CHECK_THROWS_WITH(Loader({Tensor::zeros({3, 4}), Tensor::arange(2)}, {}), contains("got 3 and 2"));
  Loader loader(numbered(10), {.batch_size = 4});
  CHECK_THROWS_WITH(loader.seek(4), "[loader] batch: expected 0 to 3, got 4");
  CHECK_THROWS_AS(loader.seek(-1), Error);
  CHECK_THROWS_WITH(loader.set_epoch(-1), contains("expected at least 0, got -1"));
}

TEST_CASE("loader: every u8 pixel becomes p/255, rounded once, as f32 and f64") {
  std::vector<uint8_t> pixels(256);
  std::iota(pixels.begin(), pixels.end(), uint8_t{0});
  const Dataset dataset{Tensor::from<uint8_t>(pixels, {1, 256}), Tensor::arange(1)};
  Loader f32(dataset, {}), f64(dataset, {.dtype = DType::f64}), centred(dataset, {.scale = 1, .mean = 127.5});
  const auto single = (*f32.begin()).images.to_vector<float>();
  const auto twice = (*f64.begin()).images.to_vector<double>();
  const auto shifted = (*centred.begin()).images.to_vector<float>();
  for (size_t p = 0; p < 256; ++p) {
    CHECK(single[p] == static_cast<float>(p) / 255.0F);
    CHECK(twice[p] == static_cast<double>(p) * (1.0 / 255.0));
    CHECK(shifted[p] == static_cast<float>(p) - 127.5F);
  }
  CHECK(single[255] == 1.0F);
}

TEST_CASE("loader: float images are taken as they are, in any of their dtypes") {
  Rng rng(3);
  const Tensor f32 = randn({5, 3}, rng), f64 = randn({5, 3}, rng, DType::f64);
  Loader a({f32, Tensor::arange(5)}, {.batch_size = 5, .shuffle = false});
  CHECK(same_bits((*a.begin()).images, f32));
  Loader b({f64, Tensor::arange(5)}, {.batch_size = 5, .shuffle = false});
  CHECK(same_bits((*b.begin()).images, f64.cast(DType::f32)));
  Loader c({f64, Tensor::arange(5)}, {.batch_size = 5, .shuffle = false, .dtype = DType::f64});
  CHECK(same_bits((*c.begin()).images, f64));
}

TEST_CASE("loader: shapes with and without flattening, also of examples that are scalars or empty") {
  Loader flat(numbered(4), {.batch_size = 3}), whole(numbered(4), {.batch_size = 3, .flatten = false});
  CHECK((*flat.begin()).images.shape() == Shape{3, 6});
  CHECK((*whole.begin()).images.shape() == Shape{3, 2, 3});
  Loader scalars({Tensor::ones({4}), Tensor::arange(4)}, {.batch_size = 3});
  CHECK((*scalars.begin()).images.shape() == Shape{3, 1});
  Loader empty({Tensor::ones({4, 0}), Tensor::arange(4)}, {.batch_size = 3});
  CHECK((*empty.begin()).images.shape() == Shape{3, 0});
  CHECK(batch_sizes(empty) == std::vector<int64_t>{3, 1});
}

TEST_CASE("loader: images stay beside their labels when shuffled") {
  const Dataset dataset = numbered(100);
  const auto pixels = dataset.images.to_vector<uint8_t>();
  Loader loader(dataset, {.batch_size = 7, .scale = 1});
  for (auto [images, labels] : loader) {
    const auto values = images.to_vector<float>();
    const auto positions = labels.to_vector<int64_t>();
    for (size_t r = 0; r < positions.size(); ++r)
      for (size_t i = 0; i < 6; ++i) CHECK(values[r * 6 + i] == static_cast<float>(pixels[static_cast<size_t>(positions[r]) * 6 + i]));
  }
}

TEST_CASE("loader: the order is a permutation that depends on seed and epoch alone") {
  const Dataset dataset = numbered(1000);
  Loader loader(dataset, {.batch_size = 32, .shuffle_seed = 1});
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t e = 0; e < 3; ++e) {
    CHECK(loader.epoch() == e);
    epochs.push_back(order_of(loader));
    CHECK(std::set<int64_t>(epochs.back().begin(), epochs.back().end()).size() == 1000);
    CHECK(epochs.back() != upto(1000));
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);

  Loader other_size(dataset, {.batch_size = 7, .shuffle_seed = 1, .prefetch = false});
  other_size.set_epoch(2);
  CHECK(order_of(other_size) == epochs[2]);
  CHECK(other_size.epoch() == 3);
  loader.set_epoch(0);
  CHECK(order_of(loader) == epochs[0]);
  Loader other_seed(dataset, {.batch_size = 32, .shuffle_seed = 2});
  CHECK(order_of(other_seed) != epochs[0]);

  for ([[maybe_unused]] const Batch& batch : loader) break;  // a loop left early counts as an epoch
  CHECK(loader.epoch() == 2);
}

TEST_CASE("loader: shuffling is uniform: each example is at each position equally often") {
  constexpr int64_t count = 5, epochs = 6000;
  Loader loader(numbered(count), {.batch_size = count, .shuffle_seed = 11, .prefetch = false});
  std::vector<int64_t> seen(count * count);
  for (int64_t e = 0; e < epochs; ++e) {
    const auto order = order_of(loader);
    for (size_t k = 0; k < count; ++k) ++seen[k * count + static_cast<size_t>(order[k])];
  }
  // Binomial(6000, 1/5): mean 1200, standard deviation 31; 25 cells, 5 standard deviations.
  for (int64_t n : seen) CHECK(std::abs(n - 1200) < 155);
}

TEST_CASE("loader: prefetched batches are the same bits as those made on the spot") {
  for (const int64_t size : {1, 3, 64, 1000, 5000}) {
    const Dataset dataset = numbered(3001);
    LoaderOptions options{.batch_size = size, .shuffle_seed = 5, .mean = 0.1307};
    Loader ahead(dataset, options);
    options.prefetch = false;
    Loader at_once(dataset, options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      auto b = at_once.begin();
      bool same = true;
      for (const Batch& a : ahead) {
        same = same && same_bits(a.images, (*b).images) && same_bits(a.labels, (*b).labels);
        ++b;
      }
      CHECK(same);
      CHECK(b == at_once.end());
    }
  }
}

TEST_CASE("loader: seek resumes inside an epoch at any batch") {
  for (const bool prefetch : {true, false}) {
    Loader loader(numbered(50), {.batch_size = 4, .shuffle_seed = 9, .prefetch = prefetch});
    loader.set_epoch(6);
    const auto whole = order_of(loader);
    for (int64_t batch : {0, 1, 7, 12, 13}) {
      loader.set_epoch(6);
      loader.seek(batch);
      const auto first = loader.begin().index();
      CHECK(first == batch);
      loader.set_epoch(6);
      loader.seek(batch);
      const auto start = std::min<std::ptrdiff_t>(batch * 4, 50);
      CHECK(order_of(loader) == std::vector<int64_t>(whole.begin() + start, whole.end()));
      CHECK(order_of(loader).size() == 50);  // only the next epoch starts there
    }
  }
}

TEST_CASE("loader: a loop may be left by break, by an exception, or outlive its loader") {
  const Dataset dataset = numbered(5000);
  for (int round = 0; round < 200; ++round) {
    Loader loader(dataset, {.batch_size = 4});
    int steps = 0;
    try {
      for (auto [images, labels] : loader) {
        if (++steps > round % 7 && round % 2 == 0) break;
        if (steps > round % 5) throw Error("[step] stop");
      }
    } catch (const Error&) {
    }
    CHECK(steps >= 1);
  }
  auto it = Loader(dataset, {.batch_size = 1000}).begin();
  int64_t count = 0;
  for (; it != std::default_sentinel; ++it) count += (*it).labels.size(0);
  CHECK(count == 5000);
}

TEST_CASE("loader: a batch that is kept keeps its values") {
  Loader loader(numbered(1000), {.batch_size = 10, .shuffle = false, .scale = 1});
  std::vector<Batch> kept;
  for (const Batch& batch : loader) kept.push_back(batch);
  const auto all = numbered(1000).images.cast(DType::f32).to_vector<float>();
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto values = kept[i].images.to_vector<float>();
    CHECK(std::equal(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(i * 60)));
    CHECK(kept[i].labels.to_vector<int64_t>()[3] == static_cast<int64_t>(i) * 10 + 3);
  }
}

TEST_CASE("loader: from the second epoch on no tensor memory comes from the system, and the peak stays") {
  Rng rng(1);
  const Dataset dataset{randint({4003, 28, 28}, 0, 256, rng).cast(DType::u8), Tensor::arange(4003)};
  for (const bool prefetch : {true, false})
    for (const int64_t size : {4, 128}) {
      Loader loader(dataset, {.batch_size = size, .prefetch = prefetch});
      order_of(loader);
      reset_peak_memory();
      order_of(loader);
      const MemoryStats first = memory_stats();
      for (int epoch = 0; epoch < 3; ++epoch) order_of(loader);
      CHECK(memory_stats().system_allocations == first.system_allocations);
      CHECK(memory_stats().peak_bytes == first.peak_bytes);
      CHECK(memory_stats().current_bytes == first.current_bytes);
    }
}

TEST_CASE("loader: loaders in several threads do not disturb each other") {
  const Dataset dataset = numbered(2000);
  Loader reference(dataset, {.batch_size = 8, .shuffle_seed = 3});
  const auto expected = order_of(reference);
  std::vector<std::vector<int64_t>> orders(4);
  std::vector<std::thread> threads;
  for (auto& order : orders)
    threads.emplace_back([&order, &dataset] {
      Loader loader(dataset, {.batch_size = 8, .shuffle_seed = 3});
      order = order_of(loader);
    });
  for (auto& thread : threads) thread.join();
  for (const auto& order : orders) CHECK(order == expected);
}

TEST_CASE("loader: running out of memory in the middle reaches the loop as an error") {
  const Dataset dataset = numbered(5000);
  Loader loader(dataset, {.batch_size = 2500});
  set_memory_limit(memory_stats().current_bytes + 1000);
  CHECK_THROWS_WITH(order_of(loader), contains("out of memory"));
  set_memory_limit(0);
  CHECK(order_of(loader).size() == 5000);
}
