// Elementwise kernels on CUDA against the CPU's: the same values, to the bit where an operation is exact.

#include <cstdint>
#include <limits>

#include "kernels/cuda/parts.h"
#include "kernels/kernels.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"
#include "kernels_cuda/spaces.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity(), not_a_number = std::numeric_limits<double>::quiet_NaN();
// The CPU's vector functions and the GPU's are good to a few units in the last place each; products of three such factors to some more.
template <class T>
constexpr double some_ulps = 24 * std::numeric_limits<T>::epsilon();

struct UnaryCase {
  Unary op;
  double p = 0;
  bool exact = false;  // value and gradient
  // Differences are relative, but to no less than this: 1 where results cross zero between representable arguments, or between terms of that order.
  double size = 1e-12, slope_size = 1e-3;
};

const UnaryCase unary_cases[] = {
    {Unary::neg, 0, true},
    {Unary::abs, 0, true},
    {Unary::exp},
    {Unary::log, 0, false, 1, 1e-12},
    {Unary::sqrt, 0, true},
    {Unary::square, 0, true},
    {Unary::reciprocal, 0, true},
    {Unary::relu, 0, true},
    {Unary::leaky_relu, 0.125, true},
    {Unary::tanh},
    {Unary::sigmoid},
    {Unary::gelu, 0, false, 1e-12, 1},
    {Unary::gelu_tanh, 0, false, 0.1, 1},  // its tail is an exponential of a number with few digits after the point
    {Unary::silu, 0, false, 1e-12, 1},
    {Unary::softplus},
    {Unary::pow, 3},
    {Unary::pow, 2, true},
    {Unary::pow, 1, true},
    {Unary::pow, 0, true},
    {Unary::pow, -0.75},
    {Unary::add_scalar, 0.375, true},
    {Unary::mul_scalar, -1.125, true},
    {Unary::rsub_scalar, 0.375, true},
    {Unary::rdiv_scalar, 0.375, true},
    {Unary::clamp_min, 0.5, true},
    {Unary::clamp_max, 0.5, true},
    {Unary::sin, 0, false, 1, 1},
    {Unary::cos, 0, false, 1, 1},
    {Unary::erf},
    {Unary::log1p, 0, false, 1, 1},
    {Unary::expm1},
    {Unary::sign, 0, true},
    {Unary::floor, 0, true},
};

/// Like first_difference, but relative down to `size`; tolerance 0 asks for equality.
template <class T>
std::string first_relative_difference(const std::vector<T>& x, const std::vector<T>& actual, const std::vector<T>& expected, double tolerance,
                                      double size) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = static_cast<double>(actual[i]), b = static_cast<double>(expected[i]);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (!(std::abs(a - b) <= tolerance * std::max(size, std::abs(b))))
      return "element " + std::to_string(i) + " at " + Catch::Detail::stringify(x[i]) + ": expected " + Catch::Detail::stringify(b) + ", got " +
             Catch::Detail::stringify(a);
  }
  return "";
}

/// Random numbers of several sizes between the values where something happens.
template <class T>
std::vector<T> interesting(int64_t n, double p) {
  auto x = normal_vector<T>(n, 1, 0, 3);
  const double edges[] = {0, -0.0, 1, -1, inf, -inf, not_a_number, 1e30, -1e30, 2e4, -2e4, 80, -80, 30, -30, 12, -12, 1e-10, -1e-10, p, -p, 0.5, 2};
  size_t i = 0;
  for (const double edge : edges)
    if (i < x.size()) x[i++] = static_cast<T>(edge);
  for (; i < x.size() / 2; ++i) x[i] *= T(4);
  return x;
}

template <class T>
void check_unary(const UnaryCase& c, int64_t n, size_t shift) {
  INFO("op " << static_cast<int>(c.op) << ", p " << c.p << ", " << n << " elements, shift " << shift << ", " << sizeof(T) << " bytes");
  const auto x = interesting<T>(n, c.p);
  auto dy = normal_vector<T>(n, 2);
  if (n > 5) dy[5] = 0;
  std::vector<T> y(x.size()), dx(x.size());
  const auto& cpu = CpuBackend::elementwise<T>();
  const auto& cuda = CudaBackend::elementwise<T>();
  cpu.unary(c.op, n, x.data(), y.data(), c.p);
  cpu.unary_backward(c.op, n, x.data(), y.data(), dy.data(), dx.data(), c.p);
  const double tolerance = c.exact ? 0 : some_ulps<T>;

  const DeviceArray<T> dev_x(x, shift), dev_y(x.size(), shift), saved_y(y, shift), dev_dy(dy, shift), dev_dx(x.size(), shift);
  cuda.unary(c.op, n, dev_x.data(), dev_y.data(), c.p);
  REQUIRE(first_relative_difference(x, dev_y.host(), y, tolerance, c.size) == "");
  const SavedBy saved = saved_by(c.op);
  cuda.unary_backward(c.op, n, saved == SavedBy::input ? dev_x.data() : nullptr, saved == SavedBy::output ? saved_y.data() : nullptr, dev_dy.data(),
                      dev_dx.data(), c.p);
  REQUIRE(first_relative_difference(x, dev_dx.host(), dx, tolerance, c.slope_size) == "");
  // In place.
  cuda.unary_backward(c.op, n, dev_x.data(), saved_y.data(), dev_dy.data(), dev_dy.data(), c.p);
  REQUIRE(first_relative_difference(x, dev_dy.host(), dx, tolerance, c.slope_size) == "");
  cuda.unary(c.op, n, dev_x.data(), dev_x.data(), c.p);
  REQUIRE(first_relative_difference(x, dev_x.host(), y, tolerance, c.size) == "");
}

template <class T>
T one(Unary op, double x, double p = 0) {
  const DeviceArray<T> in(std::vector<T>{static_cast<T>(x)}), out(1);
  CudaBackend::elementwise<T>().unary(op, 1, in.data(), out.data(), p);
  return out.host()[0];
}
template <class T>
T slope(Unary op, double x, double y, double p = 0, double dy = 1) {
  const DeviceArray<T> in(std::vector<T>{static_cast<T>(x)}), of(std::vector<T>{static_cast<T>(y)}), up(std::vector<T>{static_cast<T>(dy)}), out(1);
  CudaBackend::elementwise<T>().unary_backward(op, 1, in.data(), of.data(), up.data(), out.data(), p);
  return out.host()[0];
}

template <class T>
std::vector<T> values(int64_t n, uint64_t seed) {
  std::vector<T> v(static_cast<size_t>(n));
  const auto normal = normal_vector<double>(n, seed, 0, 40);
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = static_cast<T>(std::is_same_v<T, uint8_t> ? std::abs(std::round(normal[i])) : std::is_integral_v<T> ? std::round(normal[i]) : normal[i]);
    if (i % 5 == 3) v[i] = T(2);  // so that operands are equal now and then
    if (std::is_floating_point_v<T> && i % 11 == 7) v[i] = static_cast<T>(not_a_number);
  }
  return v;
}

template <class T>
struct Operands {
  std::vector<T> a, b;
  DeviceArray<T> dev_a, dev_b;
  Operands(const Broadcast& space, size_t first, size_t shift)
      : a(values<T>(extent(space, first), 3)), b(values<T>(extent(space, first + 1), 4)), dev_a(a, shift), dev_b(b, shift) {}
};

template <class T>
void check_binary(const Broadcast& space, size_t shift) {
  INFO(in_words(space) << ", shift " << shift << ", " << sizeof(T) << " bytes");
  const auto n = static_cast<size_t>(space.numel);
  const auto& cpu = CpuBackend::elementwise<T>();
  const auto& cuda = CudaBackend::elementwise<T>();
  const Operands<T> in(space, 0, shift);
  std::vector<Binary> ops{Binary::add, Binary::sub, Binary::mul, Binary::max, Binary::min};
  if (std::is_floating_point_v<T>) ops.insert(ops.end(), {Binary::div, Binary::pow});
  const DeviceArray<T> out(n, shift);
  for (const Binary op : ops) {
    std::vector<T> z(n);
    cpu.binary(op, space, in.a.data(), in.b.data(), z.data());
    cuda.binary(op, space, in.dev_a.data(), in.dev_b.data(), out.data());
    INFO("op " << static_cast<int>(op));
    // Powers alone are not exact; the CPU takes denormal numbers for zero.
    REQUIRE(first_relative_difference(z, out.host(), z, op == Binary::pow ? some_ulps<T> : 0, 1e-30) == "");
  }
  const DeviceArray<uint8_t> bits(n, shift);
  for (const Compare op : {Compare::eq, Compare::ne, Compare::lt, Compare::le, Compare::gt, Compare::ge}) {
    std::vector<uint8_t> z(n);
    cpu.compare(op, space, in.a.data(), in.b.data(), z.data());
    cuda.compare(op, space, in.dev_a.data(), in.dev_b.data(), bits.data());
    REQUIRE(bits.host() == z);
  }
  const Operands<T> chosen(space, 1, shift);
  std::vector<uint8_t> mask(static_cast<size_t>(extent(space, 0)));
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<uint8_t>(i % 3);
  const DeviceArray<uint8_t> dev_mask(mask, shift);
  std::vector<T> z(n);
  cpu.where(space, mask.data(), chosen.a.data(), chosen.b.data(), z.data());
  cuda.where(space, dev_mask.data(), chosen.dev_a.data(), chosen.dev_b.data(), out.data());
  REQUIRE(first_relative_difference(z, out.host(), z, 0, 0) == "");
}

template <class T>
void check_integers() {
  const std::vector<T> x = values<T>(37, 5);
  for (const size_t shift : {0, 1}) {
    const DeviceArray<T> in(x, shift), out(x.size(), shift);
    for (const Unary op : {Unary::neg, Unary::abs, Unary::add_scalar, Unary::mul_scalar}) {
      std::vector<T> y(x.size());
      CpuBackend::elementwise<T>().unary(op, 37, x.data(), y.data(), 7);
      CudaBackend::elementwise<T>().unary(op, 37, in.data(), out.data(), 7);
      CHECK(out.host() == y);
    }
  }
}

}  // namespace

TEST_CASE("cuda unary: values and gradients of every op, aligned and not, in place") {
  for (const UnaryCase& c : unary_cases) {
    for (const size_t shift : {0, 1}) {
      check_unary<float>(c, 1027, shift);
      check_unary<double>(c, 301, shift);
    }
    for (const int64_t n : {0, 1, 3, 4}) check_unary<float>(c, n, 0);
  }
}

TEST_CASE("cuda unary: more elements than one round of threads") { check_unary<float>({Unary::mul_scalar, 3, true}, 2048 * 256 + 77, 1); }

TEST_CASE("cuda unary: worked values, kinks and far ends") {
  CHECK(one<double>(Unary::gelu, 1) == Approx(0.8413447460685429).epsilon(1e-14));
  CHECK(one<float>(Unary::gelu, -5) == Approx(-1.4332578e-06).epsilon(1e-6));
  CHECK(one<double>(Unary::gelu, -10) == Approx(-7.619853024160583e-23).epsilon(1e-13));
  CHECK(one<double>(Unary::silu, -2) == Approx(-0.2384058440442351).epsilon(1e-14));
  CHECK(one<double>(Unary::softplus, -40) == Approx(4.248354255291589e-18).epsilon(1e-13));
  for (const Unary op : {Unary::gelu, Unary::gelu_tanh, Unary::silu}) {
    CHECK(one<float>(op, -inf) == 0);
    CHECK(one<float>(op, inf) == inf);
    CHECK(slope<float>(op, inf, inf) == 1);
    CHECK(slope<float>(op, -inf, 0) == 0);
    CHECK(std::isnan(one<float>(op, not_a_number)));
  }
  for (const Unary op : {Unary::relu, Unary::clamp_min, Unary::clamp_max, Unary::sign, Unary::abs}) CHECK(std::isnan(one<float>(op, not_a_number)));
  CHECK(slope<float>(Unary::relu, 0, 0) == 0);
  CHECK(slope<float>(Unary::abs, 0, 0) == 0);
  CHECK(slope<float>(Unary::clamp_min, 0.5, 0.5, 0.5) == 1);
  CHECK(slope<float>(Unary::clamp_max, 0.5, 0.5, 0.5) == 1);
  CHECK(slope<float>(Unary::sqrt, 0, 0) == inf);
  CHECK(slope<float>(Unary::sqrt, 0, 0, 0, 0) == 0);
}

TEST_CASE("cuda binary, compare and where: every layout, every type") {
  for (const Broadcast& space : all_spaces()) {
    for (const size_t shift : {0, 1}) {
      check_binary<float>(space, shift);
      check_binary<double>(space, shift);
      check_binary<int64_t>(space, shift);
      check_binary<uint8_t>(space, shift);
    }
  }
}

TEST_CASE("cuda binary: the result may take an operand's place") {
  const auto a = normal_vector<float>(4099, 6), b = normal_vector<float>(4099, 7);
  std::vector<float> z(a.size());
  const Broadcast space = space_of({4099}, {{1}, {1}, {1}});
  CpuBackend::elementwise<float>().binary(Binary::sub, space, a.data(), b.data(), z.data());
  const DeviceArray<float> first(a), second(b), keep(a);
  CudaBackend::elementwise<float>().binary(Binary::sub, space, keep.data(), second.data(), second.data());
  CudaBackend::elementwise<float>().binary(Binary::sub, space, first.data(), DeviceArray<float>(b).data(), first.data());
  CHECK(second.host() == z);
  CHECK(first.host() == z);
}

TEST_CASE("cuda accumulate and integers") {
  for (const int64_t n : {0, 1, 5, 1030}) {
    for (const size_t shift : {0, 1}) {
      const auto x = normal_vector<float>(n, 8);
      auto y = normal_vector<float>(n, 9);
      const DeviceArray<float> dev_x(x, shift), dev_y(y, shift);
      CpuBackend::elementwise<float>().accumulate(n, x.data(), y.data());
      CudaBackend::elementwise<float>().accumulate(n, dev_x.data(), dev_y.data());
      CHECK(dev_y.host() == y);
    }
  }
  check_integers<int64_t>();
  check_integers<uint8_t>();
  const DeviceArray<uint8_t> a(std::vector<uint8_t>{200, 3}), b(std::vector<uint8_t>{100, 5}), z(2);
  CudaBackend::elementwise<uint8_t>().binary(Binary::add, space_of({2}, {{1}, {1}}), a.data(), b.data(), z.data());
  CHECK(z.host() == std::vector<uint8_t>{44, 8});
  CudaBackend::elementwise<uint8_t>().binary(Binary::sub, space_of({2}, {{1}, {1}}), a.data(), b.data(), z.data());
  CHECK(z.host() == std::vector<uint8_t>{100, 254});
}

TEST_CASE("cuda parts: spaces of 2^31 elements and more are cut into parts that 32 bits address, and miss nothing (H01)") {
  const auto check = [](const Broadcast& space) {
    INFO(in_words(space));
    int64_t done = 0, last_from = -1;
    bool narrow = true, in_order = true, aligned = true;
    kernels::cuda::in_parts(space, [&](const Broadcast& part, const std::array<int64_t, 3>& from, int64_t to) {
      narrow = narrow && kernels::cuda::is_narrow(part);
      in_order = in_order && to == done;
      if (space.rank == 1) aligned = aligned && to % 16 == 0 && from[0] % 16 == 0;
      done += part.numel;
      last_from = from[0] + extent(part, 0) - 1;
    });
    CHECK((narrow && in_order && aligned));
    CHECK(done == space.numel);
    CHECK(last_from == extent(space, 0) - 1);  // the last part ends where operand 0, dense, ends
  };
  check(space_of({239'674, 8960}, {{8960, 1}, {0, 1}, {1, 0}}));
  check(space_of({131'072, 16'384}, {{16'384, 1}, {0, 1}, {1, 0}}));
  check(space_of({5'000'000'003}, {{1}, {1}, {1}}));
  check(space_of({3, 5'000'000'003}, {{5'000'000'003, 1}, {0, 1}, {0, 0}}));
  check(space_of({2, 3, 1'000'000'000}, {{3'000'000'000, 1'000'000'000, 1}, {0, 0, 1}, {0, 1, 0}}));
  check(space_of({64, 2}, {{1'000'000'000, 1}, {0, 1}, {1, 0}}));  // few elements, far apart
}
