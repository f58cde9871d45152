#pragma once
// Counter-based randomness (Philox4x32-10, Salmon et al. 2011): the i-th number of a stream is a pure function of (key, i), so results do not
// depend on the thread count, the device or the order of calls.

#include <cstdint>
#include <string_view>

#include <lamina/core/tensor.h>

namespace lamina {

/// A position in a random stream. Copy it to replay; `key` chooses the stream, `counter` the next unused block of four 32-bit numbers.
struct Rng {
  uint64_t key = 0;
  uint64_t counter = 0;

  explicit Rng(uint64_t seed = 0) : key(seed) {}
  /// An independent stream named by a text, e.g. a parameter's path.
  Rng stream(std::string_view name) const;

  uint32_t next_u32();
  /// Uniform in [0, 1) with 53 bits.
  double uniform();
  /// Uniform in {0, ..., n-1}, without modulo bias. Throws Error for n < 1.
  int64_t below(int64_t n);
};

/// Tensors of random numbers; each call advances `rng` past the numbers it used. f32 and f64 (bernoulli: also u8).
/// Uniform numbers are in [low, high) for f32 (24 bits) and f64 (53 bits); normal ones come from Box-Muller in double.
Tensor rand(const Shape& shape, Rng& rng, DType dtype = DType::f32, double low = 0.0, double high = 1.0);
Tensor randn(const Shape& shape, Rng& rng, DType dtype = DType::f32, double mean = 0.0, double std = 1.0);
/// i64 in [low, high).
Tensor randint(const Shape& shape, int64_t low, int64_t high, Rng& rng);
/// 1 with probability p, else 0, decided by an integer comparison of 32 random bits (the same on every device).
Tensor bernoulli(const Shape& shape, double p, Rng& rng, DType dtype = DType::u8, Device device = Device::cpu());
/// A random permutation of 0..n-1 (Fisher-Yates), i64.
Tensor randperm(int64_t n, Rng& rng);

}  // namespace lamina
