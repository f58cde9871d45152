#include <lamina/data/sequences.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "support/catch.h"

using namespace lamina;
using namespace lamina::data;

namespace {

// Sequence i has its length, and i + 1 in every step; its class is i.
Sequences numbered(const std::vector<int64_t>& lengths) {
  std::vector<float> steps;
  std::vector<int64_t> classes(lengths.size());
  std::iota(classes.begin(), classes.end(), 0);
  for (size_t i = 0; i < lengths.size(); ++i) steps.insert(steps.end(), static_cast<size_t>(lengths[i]), static_cast<float>(i + 1));
  const auto rows = static_cast<int64_t>(steps.size()), count = static_cast<int64_t>(lengths.size());
  return {Tensor::from(steps, {rows, 1}), lengths, Tensor::from(classes, {count})};
}

}  // namespace

TEST_CASE("a batch is padded with zeros to its longest sequence", "[data][sequences]") {
  const Sequences s = numbered({2, 0, 3});
  const SequenceBatch all = pad(s);
  CHECK(all.x.shape() == Shape{3, 3, 1});
  CHECK(all.x.to_vector<float>() == std::vector<float>{1, 0, 3, 1, 0, 3, 0, 0, 3});
  CHECK(all.lengths == std::vector<int64_t>{2, 0, 3});
  const std::vector<int64_t> which{2, 0, 0};
  const SequenceBatch some = pad(s, which);
  CHECK(some.x.to_vector<float>() == std::vector<float>{3, 1, 1, 3, 1, 1, 3, 0, 0});
  CHECK(some.targets.to_vector<int64_t>() == which);
  CHECK(pad(numbered({4, 4})).lengths.empty());  // all are T
  CHECK(pad(numbered({0, 0})).x.shape() == Shape{0, 2, 1});
  CHECK(pad(s, std::vector<int64_t>{}).x.shape() == Shape{0, 0, 1});
  CHECK_THROWS_WITH(pad(s, std::vector<int64_t>{3}), contains("index: expected 0 to 2, got 3"));
  const Sequences picked = s.select(which);
  CHECK(picked.lengths == std::vector<int64_t>{3, 2, 2});
  CHECK(picked.steps.to_vector<float>() == std::vector<float>{3, 3, 3, 1, 1, 1, 1});
}

TEST_CASE("sequences that do not add up are refused", "[data][sequences]") {
  Sequences s = numbered({2, 3});
  CHECK_NOTHROW(check(s));
  s.lengths = {2, 2};
  CHECK_THROWS_WITH(check(s), contains("lengths: expected a sum of 5, the rows of steps, got 4"));
  s.lengths = {6, -1};
  CHECK_THROWS_WITH(check(s), contains("lengths: expected at least 0, got -1 at position 1"));
  CHECK_THROWS_WITH(pad(s), contains("lengths: expected at least 0, got -1 at position 1"));
  s = numbered({2, 2, 1});
  s.lengths = {INT64_MAX, INT64_MAX, 7};  // 5 in 64 bits
  CHECK_THROWS_WITH(check(s), contains("lengths: expected a sum of 5, the rows of steps, got "));
  CHECK_THROWS_WITH(pad(s), contains("lengths: expected a sum of 5"));
  CHECK_THROWS_WITH(s.select(std::vector<int64_t>{2}), contains("lengths: expected a sum of 5"));
  s = numbered({2, 3});
  s.targets = Tensor::zeros({2});
  CHECK_THROWS_WITH(check(s), contains("targets: expected i64 [2], i64 [2, R] or f32 [2, K], got f32 [2]"));
  s = numbered({2, 3});
  s.steps = s.steps.cast(DType::f64);
  CHECK_THROWS_WITH(check(s), contains("steps: expected f32 [sum of lengths, C], got f64 [5, 1]"));
  CHECK_THROWS_WITH(check(Sequences{}), contains("undefined"));
  CHECK_THROWS_WITH(SequenceLoader(numbered({2}), {.batch_size = 0}), contains("batch_size: expected at least 1"));
  CHECK_THROWS_WITH(SequenceLoader(numbered({2}), {.bucket = 0}), contains("bucket: expected at least 1"));
}

TEST_CASE("bucketing pads little, shows everything once, and repeats", "[data][sequences]") {
  std::vector<int64_t> lengths;
  Rng rng(3);
  for (int i = 0; i < 203; ++i) lengths.push_back(1 + rng.below(100));
  const Sequences s = numbered(lengths);
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto cells = [&](SequenceLoader loader, int64_t epoch) {
    std::vector<int> seen(lengths.size());
    int64_t total = 0;
    for (int64_t i = 0; i < loader.num_batches(); ++i) {
      const SequenceBatch batch = loader.batch(epoch, i);
      total += batch.x.size(0) * batch.x.size(1);
      for (const int64_t id : batch.targets.to_vector<int64_t>()) ++seen[static_cast<size_t>(id)];
    }
    CHECK(std::count(seen.begin(), seen.end(), 1) == 203);
    return total;
  };
  const SequenceLoader loose(s, {.batch_size = 10, .shuffle_seed = 5, .bucket = 1}), close(s, {.batch_size = 10, .shuffle_seed = 5, .bucket = 20});
  CHECK(cells(loose, 0) > sum * 3 / 2);  // the longest of ten is about 91 % of 100, the mean 50 %
  CHECK(cells(close, 0) < sum * 12 / 10);
  CHECK(cells(SequenceLoader(s, {.batch_size = 10, .shuffle_seed = 5, .bucket = 3}), 0) < cells(loose, 0));

  SequenceLoader a = close, b = close;
  CHECK(a.indices(4, 7) == b.indices(4, 7));
  b.indices(5, 0);
  CHECK(a.indices(4, 7) == b.indices(4, 7));  // whatever was asked for before
  CHECK(a.indices(4, 7) != a.indices(5, 7));
  CHECK(a.indices(0, 20).size() == 3);
  std::vector<int64_t> firsts;  // batches come in no order of length
  for (int64_t i = 0; i < 20; ++i) firsts.push_back(lengths[static_cast<size_t>(a.indices(0, i)[0])]);
  CHECK_FALSE(std::ranges::is_sorted(firsts));

  SequenceLoader plain(s, {.batch_size = 10, .shuffle = false});
  CHECK(plain.indices(0, 20) == std::vector<int64_t>{200, 201, 202});
}

TEST_CASE("a last batch of one is left out when asked, never the only one (G01)", "[data][sequences]") {
  const Sequences s = numbered({1, 2, 3, 4, 5});
  CHECK(SequenceLoader(s, {.batch_size = 2}).num_batches() == 3);
  CHECK(SequenceLoader(s, {.batch_size = 2, .drop_single = true}).num_batches() == 2);
  CHECK(SequenceLoader(s, {.batch_size = 3, .drop_single = true}).num_batches() == 2);
  CHECK(SequenceLoader(s, {.batch_size = 8, .drop_single = true}).num_batches() == 1);  // G02: one batch of five
  CHECK(SequenceLoader(numbered({4}), {.batch_size = 8, .drop_single = true}).num_batches() == 1);
  std::set<int64_t> left_out;
  SequenceLoader loader(s, {.batch_size = 2, .drop_single = true});
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    std::set<int64_t> all{0, 1, 2, 3, 4};
    for (int64_t i = 0; i < 2; ++i)
      for (const int64_t id : loader.indices(epoch, i)) all.erase(id);
    left_out.insert(all.begin(), all.end());
  }
  CHECK(left_out.size() == 5);  // another one each time, not always the longest
}

TEST_CASE("the adding problem is what it says", "[data][sequences]") {
  const Sequences s = adding_problem(50, 7, Rng(1));
  CHECK_NOTHROW(check(s));
  const auto steps = s.steps.to_vector<float>(), targets = s.targets.to_vector<float>();
  std::set<int> first, second;
  double squares = 0;
  for (size_t n = 0; n < 50; ++n) {
    float sum = 0;
    std::vector<int> marks;
    for (int t = 0; t < 7; ++t) {
      const float number = steps[(n * 7 + static_cast<size_t>(t)) * 2], mark = steps[(n * 7 + static_cast<size_t>(t)) * 2 + 1];
      CHECK((number >= 0 && number < 1 && (mark == 0 || mark == 1)));
      if (mark == 1) marks.push_back(t);
      sum += mark * number;
    }
    REQUIRE(marks.size() == 2);
    CHECK((marks[0] < 3 && marks[1] >= 3));
    first.insert(marks[0]);
    second.insert(marks[1]);
    CHECK(sum == targets[n]);
    squares += (targets[n] - 1) * (targets[n] - 1) / 50;
  }
  CHECK((first.size() == 3 && second.size() == 4));
  CHECK(std::abs(squares - 1.0 / 6) < 0.08);  // of 50 draws, whose deviation is about 0.025
  CHECK(adding_problem(3, 2, Rng(1)).size() == 3);
  CHECK_THROWS_WITH(adding_problem(3, 1, Rng(1)), contains("length: expected at least 2, got 1"));
  CHECK_THROWS_WITH(adding_problem(int64_t{1} << 62, 4, Rng(1)), contains("[adding] 4611686018427387904 sequences of 4 steps are too large"));
  CHECK_THROWS_WITH(adding_problem(-1, 4, Rng(1)), contains("[adding] count: expected at least 0, got -1"));
}

TEST_CASE("the copying problem is what it says", "[data][sequences]") {
  const Sequences s = copy_problem(4, 3, Rng(2));
  CHECK_NOTHROW(check(s));
  CHECK(s.lengths == std::vector<int64_t>(4, 23));
  const auto steps = s.steps.to_vector<float>();
  const auto targets = s.targets.to_vector<int64_t>();
  for (size_t n = 0; n < 4; ++n)
    for (size_t t = 0; t < 23; ++t) {
      const float* step = steps.data() + (n * 23 + t) * 10;
      CHECK(std::accumulate(step, step + 10, 0.0F) == 1);
      const auto kind = std::max_element(step, step + 10) - step;
      CHECK(kind == (t < 10 ? targets[n * 10 + t] : t == 12 ? 9 : 8));
    }
  CHECK(std::set<int64_t>(targets.begin(), targets.end()).size() == 8);
  CHECK_THROWS_WITH(copy_problem(4, 0, Rng(2)), contains("length: expected at least 1, got 0"));
  for (const int64_t delay : {int64_t{1} << 62, std::numeric_limits<int64_t>::max()})
    CHECK_THROWS_WITH(copy_problem(4, delay, Rng(2)), contains("[copy] 4 sequences of " + std::to_string(delay) + " steps are too large"));
  CHECK_THROWS_WITH(copy_problem(int64_t{1} << 62, 4, Rng(2)), contains("are too large"));
  CHECK_THROWS_WITH(copy_problem(-1, 4, Rng(2)), contains("[copy] count: expected at least 0, got -1"));
}
