#include <lamina/core/random.h>

#include <Random123/philox.h>

#include <cmath>
#include <utility>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina {

namespace {

r123::Philox4x32::ctr_type block(uint64_t key, uint64_t counter, uint32_t domain = 0) {
  const r123::Philox4x32::ctr_type position{{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), domain, 0}};
  const r123::Philox4x32::key_type words{{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}};
  return r123::Philox4x32{}(position, words);
}

uint64_t pair(const r123::Philox4x32::ctr_type& numbers) { return static_cast<uint64_t>(numbers[1]) << 32 | numbers[0]; }

// Advances rng past `count` numbers of which a block holds `per_block`; returns where they start.
uint64_t take(Rng& rng, int64_t count, int64_t per_block) {
  return std::exchange(rng.counter, rng.counter + static_cast<uint64_t>((count + per_block - 1) / per_block));
}

}  // namespace

Rng Rng::stream(std::string_view name) const {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return Rng(pair(block(key, hash, /*domain=*/1)));
}

uint32_t Rng::next_u32() { return block(key, counter++)[0]; }

double Rng::uniform() { return static_cast<double>(pair(block(key, counter++)) >> 11) * 0x1p-53; }

int64_t Rng::below(int64_t n) {
  if (n < 1) fail("random", "below: expected n >= 1, got {}", n);
  __extension__ using Wide = unsigned __int128;
  const uint64_t range = static_cast<uint64_t>(n);
  const uint64_t unusable = -range % range;  // 2^64 mod n: the numbers below it would favour small results
  for (;;) {
    const auto product = static_cast<Wide>(pair(block(key, counter++))) * range;
    if (static_cast<uint64_t>(product) >= unusable) return static_cast<int64_t>(product >> 64);
  }
}

Tensor rand(const Shape& shape, Rng& rng, DType dtype, double low, double high) {
  if (!(low <= high)) fail("rand", "expected low <= high, got {} and {}", low, high);
  Tensor result = Tensor::empty(shape, dtype);
  with_float("rand", dtype, [&](auto zero) {
    using T = decltype(zero);
    const uint64_t start = take(rng, shape.numel(), dtype == DType::f32 ? 4 : 2);
    kernels::random<T>(result.device())->uniform(rng.key, start, shape.numel(), low, high, result.mutable_data<T>());
  });
  return result;
}

Tensor randn(const Shape& shape, Rng& rng, DType dtype, double mean, double std) {
  Tensor result = Tensor::empty(shape, dtype);
  with_float("randn", dtype, [&](auto zero) {
    using T = decltype(zero);
    kernels::random<T>(result.device())->normal(rng.key, take(rng, shape.numel(), 1), shape.numel(), mean, std, result.mutable_data<T>());
  });
  return result;
}

Tensor randint(const Shape& shape, int64_t low, int64_t high, Rng& rng) {
  if (low >= high) fail("randint", "expected low < high, got {} and {}", low, high);
  int64_t range = 0;
  if (__builtin_sub_overflow(high, low, &range)) fail("randint", "{} to {} are more than 2^63 numbers", low, high);
  Tensor result = Tensor::empty(shape, DType::i64);
  int64_t* values = result.mutable_data<int64_t>();
  for (int64_t i = 0; i < shape.numel(); ++i) values[i] = low + rng.below(range);
  return result;
}

Tensor bernoulli(const Shape& shape, double p, Rng& rng, DType dtype, Device device) {
  if (!(p >= 0 && p <= 1)) fail("bernoulli", "expected a probability in [0, 1], got {}", p);
  Tensor result = Tensor::empty(shape, dtype, device);
  const uint64_t threshold = static_cast<uint64_t>(std::llround(p * 0x1p32));
  const uint64_t start = take(rng, shape.numel(), 4);
  const auto fill = [&](auto zero) {
    using T = decltype(zero);
    kernels::random<T>(device)->bernoulli(rng.key, start, shape.numel(), threshold, result.mutable_data<T>());
  };
  if (dtype == DType::u8)
    fill(uint8_t{});
  else
    with_float("bernoulli", dtype, fill);
  return result;
}

Tensor randperm(int64_t n, Rng& rng) {
  Tensor result = Tensor::arange(n);
  int64_t* values = result.mutable_data<int64_t>();
  for (int64_t i = n - 1; i > 0; --i) std::swap(values[i], values[rng.below(i + 1)]);
  return result;
}

}  // namespace lamina
