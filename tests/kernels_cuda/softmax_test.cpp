// Softmax and cross-entropy on CUDA against the CPU's in double, which their own tests hold against the definition.

#include <array>
#include <limits>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/fault.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

constexpr double f32_tolerance = 3e-6;   // exp is good to two units in the last place (1.2e-7), sums and logs to a few
constexpr double f32_backward = 1e-5;    // the same, times cotangents of some units
constexpr double f64_tolerance = 1e-13;  // likewise
constexpr double six_digits = 2e-6;      // values written with six or seven digits
constexpr float infinity = std::numeric_limits<float>::infinity(), not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t none = -1;  // no label is ignored

template <class T>
constexpr double forward_tolerance = sizeof(T) == 4 ? f32_tolerance : f64_tolerance;
template <class T>
constexpr double backward_tolerance = sizeof(T) == 4 ? f32_backward : f64_tolerance;

size_t index(int64_t i) { return static_cast<size_t>(i); }

using Extents = std::array<int64_t, 3>;  // outer, axis, inner

template <class T>
std::vector<T> softmax(bool log, const Extents& s, const std::vector<T>& x, size_t shift = 0) {
  const DeviceArray<T> from(x, shift), y(x.size(), shift);
  CudaBackend::softmax<T>().softmax(log, s[0], s[1], s[2], from.data(), y.data());
  return y.host();
}
template <class T>
std::vector<T> softmax_backward(bool log, const Extents& s, const std::vector<T>& y, const std::vector<T>& dy, size_t shift = 0) {
  const DeviceArray<T> from(y, shift), upstream(dy, shift), dx(y.size(), shift);
  CudaBackend::softmax<T>().softmax_backward(log, s[0], s[1], s[2], from.data(), upstream.data(), dx.data());
  return dx.host();
}

template <class T>
void check_softmax(bool log, const Extents& s, size_t shift = 0) {
  INFO((log ? "log, [" : "[") << s[0] << ", " << s[1] << ", " << s[2] << "], shift " << shift);
  const auto x = normal_vector<T>(s[0] * s[1] * s[2], 1, 5, 3), dy = normal_vector<T>(s[0] * s[1] * s[2], 2);
  std::vector<double> expected(x.size()), gradient(x.size());
  const auto& cpu = CpuBackend::softmax<double>();
  cpu.softmax(log, s[0], s[1], s[2], as_double(x).data(), expected.data());
  cpu.softmax_backward(log, s[0], s[1], s[2], expected.data(), as_double(dy).data(), gradient.data());
  const auto y = softmax(log, s, x, shift);
  REQUIRE(first_difference(y, expected, forward_tolerance<T>) == "");
  // log: sums of dy of some tens
  const double tolerance = backward_tolerance<T> * std::max(1.0, std::sqrt(static_cast<double>(s[1])) / 10);
  REQUIRE(first_difference(softmax_backward(log, s, y, dy, shift), gradient, tolerance) == "");
  if (s[1] > 1) REQUIRE(largest_magnitude(gradient) > 1e-3);
}

template <class T>
struct Loss {
  std::vector<T> loss, lse, dlogits;
};

/// What cross-entropy is asked.
template <class T>
struct Question {
  int64_t rows, classes;
  std::vector<T> x;
  std::vector<int64_t> labels;
  int64_t ignore = none;
  double smoothing = 0;
  std::vector<T> dloss = normal_vector<T>(rows, 8);
};

template <class T>
Loss<double> on_cpu(const Question<T>& q) {
  Loss<double> r{std::vector<double>(index(q.rows)), std::vector<double>(index(q.rows)), std::vector<double>(q.x.size())};
  const auto x = as_double(q.x), dloss = as_double(q.dloss);
  const auto& cpu = CpuBackend::softmax<double>();
  cpu.cross_entropy(q.rows, q.classes, x.data(), q.labels.data(), q.ignore, q.smoothing, r.loss.data(), r.lse.data());
  cpu.cross_entropy_backward(q.rows, q.classes, x.data(), r.lse.data(), q.labels.data(), q.ignore, q.smoothing, dloss.data(), r.dlogits.data());
  return r;
}
template <class T>
Loss<T> on_device(const Question<T>& q, size_t shift = 0) {
  const DeviceArray<T> x(q.x, shift), dloss(q.dloss), loss(index(q.rows)), lse(index(q.rows)), dlogits(q.x.size(), shift);
  const DeviceArray<int64_t> labels(q.labels);
  const auto& cuda = CudaBackend::softmax<T>();
  cuda.cross_entropy(q.rows, q.classes, x.data(), labels.data(), q.ignore, q.smoothing, loss.data(), lse.data());
  cuda.cross_entropy_backward(q.rows, q.classes, x.data(), lse.data(), labels.data(), q.ignore, q.smoothing, dloss.data(), dlogits.data());
  return {loss.host(), lse.host(), dlogits.host()};
}

template <class T>
void check_cross_entropy(int64_t rows, int64_t classes, double smoothing, size_t shift = 0) {
  INFO(rows << " rows of " << classes << ", smoothing " << smoothing << ", shift " << shift);
  Question<T> q{rows, classes, normal_vector<T>(rows * classes, 3, 5, 3), {}, 1'000'000, smoothing};
  for (int64_t n = 0; n < rows; ++n) q.labels.push_back(n % 5 == 3 ? q.ignore : (n * 7 + 2) % classes);
  const auto expected = on_cpu(q);
  const auto have = on_device(q, shift);
  REQUIRE(first_difference(have.loss, expected.loss, forward_tolerance<T>) == "");
  REQUIRE(first_difference(have.lse, expected.lse, forward_tolerance<T>) == "");
  REQUIRE(first_difference(have.dlogits, expected.dlogits, forward_tolerance<T>) == "");
  if (classes > 1) REQUIRE(largest_magnitude(have.dlogits) > 1e-3);
}

}  // namespace

TEST_CASE("cuda softmax: along the last axis: warp, block, beyond the registers, beyond shared memory (H07)") {
  for (const bool log : {false, true}) {
    for (const int64_t axis : {1, 2, 3, 4, 10, 31, 33, 64, 128, 257, 1000, 1024, 1025, 8192, 8193})
      for (const int64_t outer : {1, 7, 40}) {
        if (outer * axis > 12'000) continue;
        check_softmax<float>(log, {outer, axis, 1});
        check_softmax<double>(log, {outer, axis, 1});
      }
    check_softmax<float>(log, {1, 30'001, 1});
    check_softmax<double>(log, {1, 16'000, 1});
  }
}

TEST_CASE("cuda softmax: along other axes") {
  for (const bool log : {false, true})
    for (const Extents& s :
         {Extents{3, 5, 2}, {2, 19, 3}, {1, 300, 7}, {7, 2, 300}, {3, 40, 65}, {40, 33, 20}, {1, 1, 9}, {20, 60, 64}, {1, 3000, 2}}) {
      check_softmax<float>(log, s);
      check_softmax<double>(log, s);
    }
}

// Shapes that are cut into parts: few columns, few rows beyond the registers.
TEST_CASE("cuda softmax: few long columns and rows") {
  for (const bool log : {false, true})
    for (const Extents& s : {Extents{1, 9001, 2}, {2, 5001, 3}, {1, 701, 65}, {1, 260, 300}, {3, 8193, 1}, {1, 20'003, 1}}) {
      check_softmax<float>(log, s, 1);
      check_softmax<double>(log, s);
    }
}

TEST_CASE("cuda softmax and cross-entropy: masks, NaN and infinities in some parts of a column alone (C03)") {
  const float values[] = {not_a_number, infinity, -infinity};
  for (const int64_t inner : {1, 2})
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5000}, {4500, 9001}, {8000, 8001}, {0, 9001}})
      for (const float value : values) {
        INFO("inner " << inner << ", " << value << " from " << begin << " to " << end);
        const Extents s{1, 9001, inner};
        auto x = normal_vector<float>(9001 * inner, 1, 0, 3);
        const auto dy = normal_vector<float>(9001 * inner, 2);
        for (int64_t j = begin; j < end; ++j) x[index(j * inner)] = value;
        for (const bool log : {false, true}) {
          std::vector<double> expected(x.size());
          CpuBackend::softmax<double>().softmax(log, s[0], s[1], s[2], as_double(x).data(), expected.data());
          const auto y = softmax(log, s, x);
          REQUIRE(first_difference(y, expected, f32_tolerance) == "");
          std::vector<double> gradient(x.size());
          CpuBackend::softmax<double>().softmax_backward(log, s[0], s[1], s[2], as_double(y).data(), as_double(dy).data(), gradient.data());
          REQUIRE(first_difference(softmax_backward(log, s, y, dy), gradient, f32_backward) == "");
        }
        if (inner > 1) continue;
        for (const double smoothing : {0.0, 0.1}) {
          const Question<float> q{1, 9001, x, {4000}, none, smoothing, {1.5F}};
          const auto expected = on_cpu(q);
          const auto have = on_device(q);
          REQUIRE(first_difference(have.loss, expected.loss, f32_tolerance) == "");
          REQUIRE(first_difference(have.lse, expected.lse, f32_tolerance) == "");
          REQUIRE(first_difference(have.dlogits, expected.dlogits, f32_tolerance) == "");
        }
      }
}

TEST_CASE("cuda softmax: arrays that are not aligned to 16 bytes; more than 65,535 rows (H02)") {
  for (const bool log : {false, true}) {
    check_softmax<float>(log, {5, 64, 1}, 1);
    check_softmax<double>(log, {3, 1600, 1}, 1);
  }
  check_softmax<float>(false, {66'000, 2, 1});
  check_softmax<float>(true, {1, 2, 66'000});
}

TEST_CASE("cuda softmax: worked values (C03, C05)") {
  for (const int64_t inner : {1, 2}) {  // two columns: the same values side by side
    INFO("inner " << inner);
    const auto spread = [&](const std::vector<float>& row) {
      std::vector<float> x;
      for (const float value : row) x.insert(x.end(), index(inner), value);
      return x;
    };
    const auto of = [&](bool log, const std::vector<float>& row) { return softmax(log, {1, static_cast<int64_t>(row.size()), inner}, spread(row)); };
    const auto large = of(true, {-781.1664F, -1043.7303F, 890.2518F, -1234.9999F});
    CHECK(first_difference(large, spread({-1671.4182F, -1933.9821F, 0, -2125.2517F}), 1.2e-7) == "");  // 2e-4 of 2000
    CHECK(of(false, {0, -infinity}) == spread({1, 0}));
    CHECK(first_difference(of(false, {infinity, 0}), spread({not_a_number, not_a_number}), 0) != "sizes differ");
    CHECK(std::isnan(of(false, {infinity, 0})[0]));
    CHECK(first_difference(of(false, {-infinity, -infinity}), spread({not_a_number, not_a_number}), 0) == "");
    CHECK(first_difference(of(true, {1, not_a_number, 2}), spread({not_a_number, not_a_number, not_a_number}), 0) == "");
    const auto masked = softmax_backward(false, {1, 2, inner}, spread({1, 0}), spread({3, 5}));
    CHECK(masked == spread({0, 0}));
  }
}

TEST_CASE("cuda softmax: zero sizes") {
  for (const Extents& s : {Extents{0, 3, 1}, {2, 0, 1}, {2, 3, 0}, {2, 0, 4}}) {
    CHECK(softmax<float>(false, s, {}).empty());
    CHECK(softmax_backward<float>(true, s, {}, {}).empty());
  }
  CHECK(on_device<float>({0, 4, {}, {}}).loss.empty());
}

TEST_CASE("cuda cross-entropy: losses and gradients, ignored labels, smoothing") {
  for (const double smoothing : {0.0, 0.1}) {
    for (const auto& [rows, classes] : {std::pair<int64_t, int64_t>{1, 1}, {9, 2}, {40, 10}, {11, 33}, {6, 1000}, {4, 1025}, {2, 8200}}) {
      check_cross_entropy<float>(rows, classes, smoothing);
      check_cross_entropy<double>(rows, classes, smoothing);
    }
    check_cross_entropy<float>(1, 30'000, smoothing);
    check_cross_entropy<float>(5, 9001, smoothing, 1);
    check_cross_entropy<double>(4, 8200, smoothing);
    check_cross_entropy<float>(5, 64, smoothing, 1);
  }
}

TEST_CASE("cuda cross-entropy: worked values (C07), masked classes") {
  const auto r = on_device<float>({2, 3, {2, 0, 0, 0, 0, 0}, {0, -100}, -100, 0, {1, 1}});
  CHECK(first_difference(r.loss, std::vector<double>{0.239545, 0}, six_digits) == "");
  const double p = std::exp(2.0) / (std::exp(2.0) + 2), q = 1 / (std::exp(2.0) + 2);
  CHECK(first_difference(r.dlogits, std::vector<double>{p - 1, q, q, 0, 0, 0}, six_digits) == "");
  const auto masked = on_device<float>({1, 3, {1, -infinity, 0}, {0}, none, 0, {1}});
  CHECK(first_difference(masked.loss, std::vector<double>{std::log1p(std::exp(-1.0))}, six_digits) == "");
  CHECK(masked.dlogits[1] == 0);
  // The saved log-sum-exp is rounded to 64; the gradient still sums to 0.
  const auto large = on_device<float>({1, 2, {1e9F, 1e9F}, {0}, none, 0, {1}});
  CHECK(first_difference(large.dlogits, std::vector<double>{-0.5, 0.5}, six_digits) == "");
}

TEST_CASE("cuda cross-entropy: a label out of range is found, reads nothing out of bounds, and gives 0 (C08)") {
  kernels::cuda::throw_if_fault();
  for (const int64_t bad : {int64_t{3}, int64_t{-1}, int64_t{255}, std::numeric_limits<int64_t>::min()}) {
    INFO("label " << bad);
    const Question<float> q{3, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, bad, 2}, -100, 0.1};
    const DeviceArray<float> x(q.x), dloss(q.dloss), loss(3), lse(3), dlogits(9);
    const DeviceArray<int64_t> labels(q.labels);
    const auto& cuda = CudaBackend::softmax<float>();
    cuda.cross_entropy(3, 3, x.data(), labels.data(), q.ignore, q.smoothing, loss.data(), lse.data());
    CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), contains("[cross_entropy] labels: " + std::to_string(bad) + " at position 1"));
    cuda.cross_entropy_backward(3, 3, x.data(), lse.data(), labels.data(), q.ignore, q.smoothing, dloss.data(), dlogits.data());
    CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), contains("[cross_entropy] labels: " + std::to_string(bad) + " at position 1"));
    const auto losses = loss.host(), gradients = dlogits.host();
    CHECK((losses[0] > 0 && losses[1] == 0 && losses[2] > 0));
    for (size_t i = 0; i < 9; ++i) CHECK((gradients[i] == 0) == (i / 3 == 1));
  }
}

TEST_CASE("cuda cross-entropy: a label out of range of a long row is found and gives 0 (C08)") {
  kernels::cuda::throw_if_fault();
  const Question<float> q{3, 9001, normal_vector<float>(3 * 9001, 4), {0, 9001, 2}, 2, 0};
  const DeviceArray<float> x(q.x), dloss(q.dloss), loss(3), lse(3), dlogits(q.x.size());
  const DeviceArray<int64_t> labels(q.labels);
  const auto& cuda = CudaBackend::softmax<float>();
  cuda.cross_entropy(3, 9001, x.data(), labels.data(), q.ignore, q.smoothing, loss.data(), lse.data());
  CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), contains("[cross_entropy] labels: 9001 at position 1"));
  cuda.cross_entropy_backward(3, 9001, x.data(), lse.data(), labels.data(), q.ignore, q.smoothing, dloss.data(), dlogits.data());
  CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), contains("[cross_entropy] labels: 9001 at position 1"));
  const auto losses = loss.host(), gradients = dlogits.host();
  CHECK((losses[0] > 0 && losses[1] == 0 && losses[2] == 0));
  for (size_t i = 0; i < 9001; i += 100) CHECK((gradients[i] != 0 && gradients[9001 + i] == 0 && gradients[2 * 9001 + i] == 0));
}

TEST_CASE("cuda softmax: two runs have the same bits (H08)") {
  for (const Extents& s : {Extents{5, 3000, 1}, {40, 33, 20}, {1, 3000, 2}, {1, 9001, 2}, {2, 9001, 1}}) {
    const auto x = normal_vector<float>(s[0] * s[1] * s[2], 9);
    const auto one = softmax(true, s, x);
    CHECK(one == softmax(true, s, x));
    CHECK(softmax_backward(true, s, one, x) == softmax_backward(true, s, one, x));
  }
}
