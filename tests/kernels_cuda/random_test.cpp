// Philox streams on CUDA: the CPU's, number for number.

#include "kernels/kernels.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

constexpr uint64_t key = 0x0123'4567'89AB'CDEF, below_carry = 0xFFFF'FFFE, third = 0x5555'5555;  // of 2^32
// Logarithm, root and cosine of double, a unit in the last place or two each; values of order 1. Then rounded to T, which hides it but for ties.
template <class T>
constexpr double normal_tolerance = sizeof(T) == 4 ? 2e-7 : 4e-15;

/// fill(kernels, y) on both sides.
template <class T, class Fill>
void check_same(int64_t n, double tolerance, Fill&& fill) {
  for (const size_t shift : {0, 1}) {
    std::vector<T> y(static_cast<size_t>(n));
    fill(CpuBackend::random<T>(), y.data());
    const DeviceArray<T> on_device(y.size(), shift);
    fill(CudaBackend::random<T>(), on_device.data());
    INFO(n << " elements of " << sizeof(T) << " bytes, shift " << shift);
    REQUIRE(first_difference(on_device.host(), y, tolerance) == "");
  }
}

template <class T>
void check_floats(int64_t n) {
  for (const uint64_t counter : {uint64_t{0}, below_carry, ~uint64_t{0} - 3}) {
    check_same<T>(n, 0, [&](const auto& kernels, T* y) { kernels.uniform(key, counter, n, -0.3, 1.7, y); });
    check_same<T>(n, normal_tolerance<T>, [&](const auto& kernels, T* y) { kernels.normal(key, counter, n, 0.1, 1.3, y); });
    check_same<T>(n, 0, [&](const auto& kernels, T* y) { kernels.bernoulli(key, counter, n, third, y); });
  }
}

template <class T>
void check_dropout(int64_t n, size_t shift) {
  const auto x = normal_vector<T>(n, 1);
  std::vector<T> y(x.size()), bits(x.size());
  CpuBackend::random<T>().dropout(key, below_carry, n, third, 1.5, x.data(), y.data());
  const DeviceArray<T> in(x, shift), out(x.size(), shift), mask(x.size(), shift);
  CudaBackend::random<T>().dropout(key, below_carry, n, third, 1.5, in.data(), out.data());
  CudaBackend::random<T>().bernoulli(key, below_carry, n, third, mask.data());
  CHECK(out.host() == y);
  bits = mask.host();
  for (size_t i = 0; i < bits.size(); ++i) REQUIRE((bits[i] != 0) == (y[i] != 0));
  CudaBackend::random<T>().dropout(key, below_carry, n, third, 1.5, in.data(), in.data());
  CHECK(in.host() == y);
}

}  // namespace

TEST_CASE("cuda random: the CPU's numbers, on all lengths, across carries of the counter") {
  for (const int64_t n : {0, 1, 2, 3, 4, 5, 1031}) {
    check_floats<float>(n);
    check_floats<double>(n);
    check_same<uint8_t>(n, 0, [&](const auto& kernels, uint8_t* y) { kernels.bernoulli(key, 3, n, third, y); });
  }
}

TEST_CASE("cuda random: certain and impossible") {
  for (const uint64_t threshold : {uint64_t{0}, uint64_t{1} << 32}) {
    const DeviceArray<float> y(37);
    CudaBackend::random<float>().bernoulli(key, 0, 37, threshold, y.data());
    CHECK(y.host() == std::vector<float>(37, threshold == 0 ? 0.0F : 1.0F));
  }
}

TEST_CASE("cuda random: uniform never reaches its upper end") {
  // A width of three units in the last place, where most sums round.
  const double low = 1.0, high = 1.0 + 3 * 0x1p-23;
  check_same<float>(2000, 0, [&](const auto& kernels, float* y) { kernels.uniform(key, 0, 2000, low, high, y); });
  const DeviceArray<float> y(2000);
  CudaBackend::random<float>().uniform(key, 0, 2000, low, high, y.data());
  for (const float v : y.host()) REQUIRE((v >= low && v < high));
}

TEST_CASE("cuda random: dropout drops what bernoulli says, as on the CPU; in place too") {
  for (const size_t shift : {0, 1}) {
    check_dropout<float>(1031, shift);
    check_dropout<double>(1031, shift);
  }
}

TEST_CASE("cuda random: more blocks of numbers than one round of threads") {
  const int64_t n = 4096 * 256 + 9;  // of normal, a block each; the last ones alone are compared
  const DeviceArray<double> y(static_cast<size_t>(n));
  CudaBackend::random<double>().normal(key, 5, n, 0, 1, y.data());
  std::vector<double> last(20);
  CpuBackend::random<double>().normal(key, 5 + static_cast<uint64_t>(n) - 20, 20, 0, 1, last.data());
  const auto all = y.host();
  CHECK(first_difference(std::vector<double>(all.end() - 20, all.end()), last, normal_tolerance<double>) == "");
}
