// The stream layout is written in kernels/random.h; any range can be filled on its own, so threads do not change a bit.

#include "kernels/random.h"

#include <Random123/philox.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <type_traits>

#include <lamina/core/parallel.h>
#include "kernels/kernels.h"

namespace lamina::kernels {
namespace {

constexpr int64_t kGrain = 16384;

r123::Philox4x32::ctr_type philox(uint64_t key, uint64_t block) {
  return r123::Philox4x32()({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}},
                            {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}});
}

/// Uniform in [0, 1) from the 53 high bits of a pair (first number low).
double uniform53(uint32_t low, uint32_t high) { return static_cast<double>(((static_cast<uint64_t>(high) << 32) | low) >> 11) * 0x1p-53; }

/// Calls f(i, number) for elements of 32-bit kinds: number i % 4 of block counter + i / 4.
template <class F>
void for_each_number(uint64_t key, uint64_t counter, int64_t n, F&& f) {
  parallel_for((n + 3) / 4, kGrain / 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto numbers = philox(key, counter + static_cast<uint64_t>(block));
      const int64_t first = block * 4, count = std::min<int64_t>(4, n - first);
      for (int64_t j = 0; j < count; ++j) f(first + j, numbers[static_cast<size_t>(j)]);
    }
  });
}

/// Calls f(i, low, high) for elements of 64-bit kinds.
template <class F>
void for_each_pair(uint64_t key, uint64_t counter, int64_t n, F&& f) {
  parallel_for((n + 1) / 2, kGrain / 2, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto numbers = philox(key, counter + static_cast<uint64_t>(block));
      f(block * 2, numbers[0], numbers[1]);
      if (block * 2 + 1 < n) f(block * 2 + 1, numbers[2], numbers[3]);
    }
  });
}

template <class T>
struct CpuRandom final : RandomKernels<T> {
  static constexpr bool kFloating = std::is_floating_point_v<T>;

  void uniform(uint64_t key, uint64_t counter, int64_t n, double low, double high, T* y) const override {
    // low + u (high - low) can round up to high itself, which is excluded.
    const T start = static_cast<T>(low), width = static_cast<T>(high - low), last = static_cast<T>(high);
    const auto place = [=](T u) {
      const T v = start + u * width;
      return v < last || !(start < last) ? v : below(last);
    };
    if constexpr (std::is_same_v<T, float>) {
      for_each_number(key, counter, n, [=](int64_t i, uint32_t number) { y[i] = place(static_cast<float>(number >> 8) * 0x1p-24f); });
    } else if constexpr (kFloating) {
      for_each_pair(key, counter, n, [=](int64_t i, uint32_t a, uint32_t b) { y[i] = place(uniform53(a, b)); });
    } else {
      std::abort();
    }
  }

  void normal(uint64_t key, uint64_t counter, int64_t n, double mean, double std, T* y) const override {
    if constexpr (kFloating) {
      parallel_for(n, kGrain / 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const auto numbers = philox(key, counter + static_cast<uint64_t>(i));
          const double u = 1.0 - uniform53(numbers[0], numbers[1]);  // in (0, 1], for the logarithm
          const double angle = 2 * std::numbers::pi * uniform53(numbers[2], numbers[3]);
          y[i] = static_cast<T>(mean + std * std::sqrt(-2 * std::log(u)) * std::cos(angle));
        }
      });
    } else {
      std::abort();
    }
  }

  void bernoulli(uint64_t key, uint64_t counter, int64_t n, uint64_t threshold, T* y) const override {
    for_each_number(key, counter, n, [=](int64_t i, uint32_t number) { y[i] = T(number < threshold); });
  }

  void dropout(uint64_t key, uint64_t counter, int64_t n, uint64_t threshold, double scale, const T* x, T* y) const override {
    if constexpr (kFloating) {
      const T factor = static_cast<T>(scale);
      for_each_number(key, counter, n, [=](int64_t i, uint32_t number) { y[i] = number < threshold ? x[i] * factor : T(0); });
    } else {
      std::abort();
    }
  }

 private:
  static T below(T v) { return static_cast<T>(std::nextafter(v, -std::numeric_limits<T>::infinity())); }
};

template <class T>
const RandomKernels<T>& instance() {
  static const CpuRandom<T> kernels;
  return kernels;
}

}  // namespace

template <>
const RandomKernels<float>& CpuBackend::random<float>() {
  return instance<float>();
}
template <>
const RandomKernels<double>& CpuBackend::random<double>() {
  return instance<double>();
}
template <>
const RandomKernels<uint8_t>& CpuBackend::random<uint8_t>() {
  return instance<uint8_t>();
}

}  // namespace lamina::kernels
