#include <Random123/philox.h>

#include <lamina/core/parallel.h>
#include <lamina/core/random.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "support/allclose.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("Philox gives its published numbers", "[core][random]") {
  // Random123's known answers for philox4x32-10: counter 0, key 0.
  Rng rng(0);
  const uint32_t known[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  CHECK(rng.next_u32() == known[0]);
  CHECK(rng.counter == 1);
  // The tensor kinds read the same block: a 32-bit number gives 24 bits of an f32, a pair 53 bits of an f64.
  Rng again(0);
  const auto f32 = rand({4}, again).to_vector<float>();
  for (size_t i = 0; i < 4; ++i) CHECK(f32[i] == static_cast<float>(known[i] >> 8) * 0x1p-24f);
  CHECK(again.counter == 1);
  Rng pairs(0);
  const auto f64 = rand({2}, pairs, DType::f64).to_vector<double>();
  CHECK(f64[0] == static_cast<double>((uint64_t{known[1]} << 32 | known[0]) >> 11) * 0x1p-53);
  CHECK(f64[1] == static_cast<double>((uint64_t{known[3]} << 32 | known[2]) >> 11) * 0x1p-53);
  Rng host(0);
  CHECK(host.uniform() == f64[0]);
  // Bernoulli is an integer comparison of the 32-bit numbers with p * 2^32: 0x6627... is 0.399, the others are larger.
  Rng bits(0);
  CHECK(bernoulli({4}, 0.5, bits).to_vector<uint8_t>() == std::vector<uint8_t>{1, 0, 0, 0});
  // Key and counter are the low words first.
  Rng far(0x0123456789abcdefu);
  far.counter = 0xfedcba9876543210u;
  const r123::Philox4x32::ctr_type position{{0x76543210u, 0xfedcba98u, 0, 0}};
  const r123::Philox4x32::key_type key{{0x89abcdefu, 0x01234567u}};
  CHECK(far.next_u32() == r123::Philox4x32{}(position, key)[0]);
}

TEST_CASE("random tensors do not depend on the thread count or on how they are cut", "[core][random]") {
  const int threads = num_threads();
  const auto draw = [] {
    Rng rng(7);
    std::vector<Tensor> all{rand({100003}, rng),
                            randn({100003}, rng),
                            rand({50001}, rng, DType::f64),
                            randn({50001}, rng, DType::f64),
                            bernoulli({100003}, 0.3, rng),
                            randint({1001}, -5, 5, rng),
                            randperm(1001, rng)};
    all.push_back(Tensor::scalar(static_cast<double>(rng.counter), DType::f64));
    return all;
  };
  set_num_threads(1);
  const auto one = draw();
  for (const int count : {2, 3, 8}) {
    set_num_threads(count);
    const auto many = draw();
    for (size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], many[i]));
  }
  set_num_threads(threads);
  Rng whole(9), parts(9);
  const auto long_one = rand({12}, whole).to_vector<float>();
  auto joined = rand({8}, parts).to_vector<float>();
  for (const float value : rand({4}, parts).to_vector<float>()) joined.push_back(value);
  CHECK(long_one == joined);
  CHECK(whole.counter == parts.counter);
}

TEST_CASE("random numbers have the distribution they are named for", "[core][random]") {
  constexpr int64_t n = 200000;
  // Means of n draws lie within 5 standard errors.
  const double bound = 5 / std::sqrt(static_cast<double>(n));
  for (const DType dtype : {DType::f32, DType::f64}) {
    Rng rng(3);
    double sum = 0, squares = 0, fourth = 0;
    for (const double v : values(randn({n}, rng, dtype, 2.0, 3.0))) {
      const double z = (v - 2) / 3;
      sum += z, squares += z * z, fourth += z * z * z * z;
    }
    CHECK(std::abs(sum / n) < bound);
    CHECK(std::abs(squares / n - 1) < bound * std::sqrt(2.0));
    CHECK(std::abs(fourth / n - 3) < bound * std::sqrt(96.0));
    const auto u = values(rand({n}, rng, dtype, -1, 3));
    CHECK(*std::min_element(u.begin(), u.end()) >= -1);
    CHECK(*std::max_element(u.begin(), u.end()) < 3);
    double mean = 0;
    for (const double v : u) mean += v / n;
    CHECK(std::abs(mean - 1) < bound * 4 / std::sqrt(12.0));
    double ones = 0;
    for (const double v : values(bernoulli({n}, 0.3, rng, dtype))) ones += v;
    CHECK(std::abs(ones / n - 0.3) < bound * std::sqrt(0.21));
  }
  Rng rng(4);
  CHECK(values(bernoulli({50}, 0.0, rng)) == std::vector<double>(50, 0.0));
  CHECK(values(bernoulli({50}, 1.0, rng)) == std::vector<double>(50, 1.0));
}

TEST_CASE("below() is unbiased and stays in range", "[core][random]") {
  Rng rng(11);
  std::array<int, 7> counts{};
  constexpr int n = 70000;
  for (int i = 0; i < n; ++i) ++counts.at(static_cast<size_t>(rng.below(7)));
  double chi2 = 0;
  for (const int count : counts) chi2 += (count - 10000.0) * (count - 10000.0) / 10000.0;
  CHECK(chi2 < 22.5);  // 6 degrees of freedom: exceeded once in a thousand
  CHECK(rng.below(1) == 0);
  // 2^64 / 2.5: a plain product of 64 bits would give odd numbers 3 times for 2 of the even ones in the lower half, and the other way round above it.
  const int64_t range = 7378697629483820646;
  int lower = 0, odd = 0;
  for (int i = 0; i < n; ++i) {
    const int64_t value = rng.below(range);
    if (value < 0 || value >= range) FAIL("out of range: " << value);
    if (value >= range / 2) continue;
    ++lower;
    odd += value % 2;
  }
  CHECK(std::abs(lower - n / 2) < 5 * std::sqrt(n) / 2);
  CHECK(std::abs(odd - lower / 2) < 5 * std::sqrt(lower) / 2);
  CHECK_THROWS_WITH(rng.below(0), contains("[random] below: expected n >= 1, got 0"));
}

TEST_CASE("streams differ by name and by seed, and repeat", "[core][random]") {
  const Rng root(5);
  std::set<uint64_t> keys{root.key};
  for (const char* name : {"weight", "bias", "layer.0", "layer.1", ""}) keys.insert(root.stream(name).key);
  CHECK(keys.size() == 6);
  CHECK(root.stream("weight").key == Rng(5).stream("weight").key);
  CHECK(root.stream("weight").key != Rng(6).stream("weight").key);
  CHECK(root.stream("weight").counter == 0);
  Rng a = root.stream("a"), b = root.stream("b");
  CHECK(max_difference(randn({100}, a), randn({100}, b)) > 0.5);
}

TEST_CASE("randperm is a permutation, randint covers its range", "[core][random]") {
  Rng rng(13);
  auto order = randperm(1000, rng).to_vector<int64_t>();
  CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 1000; ++i)
    if (order[static_cast<size_t>(i)] != i) FAIL("missing " << i);
  CHECK(randperm(0, rng).numel() == 0);
  CHECK(randperm(1, rng).to_vector<int64_t>() == std::vector<int64_t>{0});
  const auto values = randint({1000}, -2, 2, rng).to_vector<int64_t>();
  const std::set<int64_t> seen(values.begin(), values.end());
  CHECK(seen == std::set<int64_t>{-2, -1, 0, 1});
}

TEST_CASE("random functions refuse wrong arguments and accept empty shapes", "[core][random]") {
  Rng rng(1);
  CHECK_THROWS_WITH(randint({2}, INT64_MIN, INT64_MAX, rng), contains("[randint]"));
  CHECK_THROWS_WITH(rand({2}, rng, DType::i64), contains("[rand] expected a tensor of f32 or f64, got i64"));
  CHECK_THROWS_WITH(rand({2}, rng, DType::f32, 1, 0), contains("low <= high"));
  CHECK_THROWS_WITH(randint({2}, 3, 3, rng), contains("[randint] expected low < high"));
  CHECK_THROWS_WITH(bernoulli({2}, 1.5, rng), contains("[bernoulli] expected a probability in [0, 1], got 1.5"));
  CHECK_THROWS_AS(bernoulli({2}, std::nan(""), rng), Error);
  CHECK(rng.counter == 0);
  CHECK(randn({0, 3}, rng).shape() == Shape{0, 3});
  CHECK(rng.counter == 0);
}
