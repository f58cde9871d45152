// Softmax and cross-entropy against plain loops in double.

#include <limits>

#include "kernels/kernels.h"
#include "kernels/vectors.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

constexpr double f32_tolerance = 2e-6;  // exp is good to about one unit in the last place (1.2e-7), sums and logs to a few
constexpr double f32_large = 1e-5;      // inputs of some tens: the difference to the maximum carries their rounding
constexpr double f64_tolerance = 1e-13;
constexpr double difference_step = 1e-5, difference_tolerance = 1e-8;  // central differences: step^2 and 1e-16 / step
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr int64_t none = -1;  // no label is ignored

size_t index(int64_t i) { return static_cast<size_t>(i); }
template <class T>
const SoftmaxKernels<T>& kernels_of() {
  return kernels::CpuBackend::softmax<T>();
}

std::vector<double> reference(bool log, int64_t outer, int64_t axis, int64_t inner, const std::vector<double>& x) {
  std::vector<double> y(x.size());
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      const auto at = [&](int64_t k) { return index((o * axis + k) * inner + i); };
      double top = -HUGE_VAL, sum = 0;
      for (int64_t k = 0; k < axis; ++k) top = std::max(top, x[at(k)]);
      for (int64_t k = 0; k < axis; ++k) sum += std::exp(x[at(k)] - top);
      for (int64_t k = 0; k < axis; ++k) y[at(k)] = log ? x[at(k)] - top - std::log(sum) : std::exp(x[at(k)] - top) / sum;
    }
  return y;
}

template <class T>
std::vector<T> forward(bool log, int64_t outer, int64_t axis, int64_t inner, const std::vector<T>& x) {
  std::vector<T> y(x.size(), T(77));
  kernels_of<T>().softmax(log, outer, axis, inner, x.data(), y.data());
  return y;
}

template <class T>
std::vector<T> backward(bool log, int64_t outer, int64_t axis, int64_t inner, const std::vector<T>& y, const std::vector<T>& dy) {
  std::vector<T> dx(y.size(), T(77));
  kernels_of<T>().softmax_backward(log, outer, axis, inner, y.data(), dy.data(), dx.data());
  return dx;
}

template <class T>
struct Loss {
  std::vector<T> loss, lse, dlogits;
};

template <class T>
Loss<T> cross_entropy(int64_t rows, int64_t classes, const std::vector<T>& x, const std::vector<int64_t>& labels, int64_t ignore, double smoothing,
                      const std::vector<T>& dloss) {
  Loss<T> r{std::vector<T>(index(rows), T(77)), std::vector<T>(index(rows), T(77)), std::vector<T>(x.size(), T(77))};
  kernels_of<T>().cross_entropy(rows, classes, x.data(), labels.data(), ignore, smoothing, r.loss.data(), r.lse.data());
  kernels_of<T>().cross_entropy_backward(rows, classes, x.data(), r.lse.data(), labels.data(), ignore, smoothing, dloss.data(), r.dlogits.data());
  return r;
}

std::vector<int64_t> labels_for(int64_t rows, int64_t classes, int64_t ignore) {
  std::vector<int64_t> labels(index(rows));
  for (int64_t n = 0; n < rows; ++n) labels[index(n)] = n % 5 == 3 ? ignore : (n * 7 + 2) % classes;
  return labels;
}

double loss_reference(int64_t classes, const double* x, int64_t label, double smoothing) {
  const auto log_p = reference(true, 1, classes, 1, std::vector<double>(x, x + classes));
  double mean = 0;
  for (double v : log_p) mean += v / static_cast<double>(classes);
  return -(1 - smoothing) * log_p[index(label)] - (smoothing > 0 ? smoothing * mean : 0);
}

}  // namespace

TEST_CASE("softmax: forward meets the definition along the last axis and others") {
  for (bool log : {false, true})
    for (int64_t axis : {1, 2, 3, 7, 10, 16, 33, 300, 5000})
      for (auto [outer, inner] : {std::pair<int64_t, int64_t>(7, 1), {40, 1}, {3, 2}, {2, 19}, {1, 300}}) {
        INFO("log " << log << ", [" << outer << ", " << axis << ", " << inner << "]");
        const auto x = normal_vector<float>(outer * axis * inner, 1, 5, 3);
        REQUIRE(first_difference(forward(log, outer, axis, inner, x), reference(log, outer, axis, inner, as_double(x)), f32_tolerance) == "");
        const auto wide = as_double(x);
        REQUIRE(first_difference(forward(log, outer, axis, inner, wide), reference(log, outer, axis, inner, wide), f64_tolerance) == "");
      }
}

TEST_CASE("softmax: a hundred thousand classes keep their digits") {
  const auto x = normal_vector<float>(100000, 2);
  for (bool log : {false, true})
    for (int64_t inner : {1, 2}) {
      const auto y = forward(log, 1, 100000 / inner, inner, x);
      const auto expected = reference(log, 1, 100000 / inner, inner, as_double(x));
      double worst = 0;
      for (size_t i = 0; i < y.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(y[i]) / expected[i] - 1));
      CHECK(worst < f32_tolerance);
    }
}

TEST_CASE("softmax: backward is the derivative of the definition") {
  for (bool log : {false, true})
    for (auto [outer, axis, inner] : {std::array<int64_t, 3>{3, 5, 1}, {2, 17, 1}, {2, 4, 3}, {1, 6, 9}}) {
      INFO("log " << log << ", [" << outer << ", " << axis << ", " << inner << "]");
      auto x = normal_vector<double>(outer * axis * inner, 3);
      const auto dy = normal_vector<double>(outer * axis * inner, 4);
      const auto dx = backward(log, outer, axis, inner, forward(log, outer, axis, inner, x), dy);
      const auto numeric = central_differences(x, difference_step, [&, outer = outer, axis = axis, inner = inner] {
        const auto y = reference(log, outer, axis, inner, x);
        double sum = 0;
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
        return sum;
      });
      CHECK(largest_magnitude(numeric) > 1e-2);
      CHECK(first_difference(dx, numeric, difference_tolerance) == "");
    }
  for (bool log : {false, true})
    for (auto [outer, axis, inner] : {std::array<int64_t, 3>{33, 1000, 1}, {3, 200, 40}}) {
      const auto x = normal_vector<float>(outer * axis * inner, 5), dy = normal_vector<float>(outer * axis * inner, 6);
      const auto y = forward(log, outer, axis, inner, x);
      CHECK(first_difference(backward(log, outer, axis, inner, y, dy), backward(log, outer, axis, inner, as_double(y), as_double(dy)), f32_large) ==
            "");
    }
}

TEST_CASE("softmax: large logits (C03) and infinities (C05)") {
  const std::vector<float> large = {-781.1664F, -1043.7303F, 890.2518F, -1234.9999F};
  const std::vector<double> expected = {-1671.4182, -1933.9821, 0, -2125.2517};
  for (int64_t inner : {1, 4}) {
    std::vector<float> x;
    for (float v : large) x.insert(x.end(), index(inner), v);
    const auto y = forward(true, 1, 4, inner, x);
    for (size_t k = 0; k < 4; ++k) CHECK(y[k * index(inner)] == Approx(expected[k]).margin(2e-4));
  }
  for (int64_t inner : {1, 3}) {
    const auto columns = [&](std::vector<float> pair) {
      std::vector<float> x;
      for (float v : pair) x.insert(x.end(), index(inner), v);
      const auto y = forward(false, 1, 2, inner, x);
      return std::vector<float>{y[0], y[index(inner)]};
    };
    CHECK(columns({0, -infinity}) == std::vector<float>{1, 0});
    for (const auto& pair : {std::vector<float>{infinity, 0}, {-infinity, -infinity}, {NAN, 0}, {0, NAN}}) {
      const auto y = columns(pair);
      CHECK((std::isnan(y[0]) && std::isnan(y[1])));
    }
  }
  const std::vector<float> y = {1, 0}, dy = {3, 5};
  CHECK(first_difference(backward(false, 1, 2, 1, y, dy), std::vector<double>{0, 0}, 0) == "");
  CHECK(first_difference(backward<float>(true, 1, 2, 1, {0, -infinity}, dy), std::vector<double>{3 - 8, 5}, 0) == "");
}

TEST_CASE("softmax: rows do not touch each other, zero sizes are legal") {
  std::vector<float> x = normal_vector<float>(3 * 40, 7);
  const auto clean = forward(false, 3, 40, 1, x);
  x[45] = NAN;
  const auto spoilt = forward(false, 3, 40, 1, x);
  for (size_t i = 0; i < x.size(); ++i) CHECK((i / 40 == 1 ? std::isnan(spoilt[i]) : spoilt[i] == clean[i]));
  for (auto [outer, axis, inner] : {std::array<int64_t, 3>{0, 4, 1}, {4, 0, 1}, {4, 0, 3}, {2, 3, 0}}) {
    CHECK(forward<float>(false, outer, axis, inner, {}).empty());
    CHECK(backward<float>(true, outer, axis, inner, {}, {}).empty());
  }
  CHECK(cross_entropy<float>(0, 5, {}, {}, none, 0, {}).loss.empty());
}

TEST_CASE("cross-entropy: loss, log-sum-exp and gradient meet the definition") {
  for (double smoothing : {0.0, 0.1})
    for (auto [rows, classes] : {std::pair<int64_t, int64_t>(1, 1), {7, 10}, {128, 10}, {33, 1000}, {3, 9000}}) {
      INFO(rows << " rows of " << classes << ", smoothing " << smoothing);
      const int64_t ignore = -100;
      const auto x = normal_vector<float>(rows * classes, 8, 0, 4), dloss = normal_vector<float>(rows, 9);
      const auto labels = labels_for(rows, classes, ignore);
      const auto r = cross_entropy(rows, classes, x, labels, ignore, smoothing, dloss);
      const auto wide = as_double(x);
      std::vector<double> loss(index(rows)), dlogits(x.size());
      for (int64_t n = 0; n < rows; ++n) {
        const int64_t label = labels[index(n)];
        if (label == ignore) continue;
        loss[index(n)] = loss_reference(classes, wide.data() + n * classes, label, smoothing);
        const auto p = reference(false, 1, classes, 1, std::vector<double>(wide.begin() + n * classes, wide.begin() + (n + 1) * classes));
        for (int64_t k = 0; k < classes; ++k)
          dlogits[index(n * classes + k)] =
              dloss[index(n)] * (p[index(k)] - (k == label ? 1 - smoothing : 0) - smoothing / static_cast<double>(classes));
      }
      REQUIRE(first_difference(r.loss, loss, f32_tolerance) == "");
      REQUIRE(first_difference(r.dlogits, dlogits, f32_tolerance) == "");
      for (int64_t n = 0; n < rows; ++n) {
        const auto log_p = reference(true, 1, classes, 1, std::vector<double>(wide.begin() + n * classes, wide.begin() + (n + 1) * classes));
        REQUIRE(r.lse[index(n)] == Approx(wide[index(n * classes)] - log_p[0]).epsilon(1e-6));
      }
    }
}

TEST_CASE("cross-entropy: the gradient is the derivative of the loss") {
  const int64_t rows = 3, classes = 6;
  auto x = normal_vector<double>(rows * classes, 10);
  const std::vector<int64_t> labels = {2, 0, 5};
  const auto dloss = normal_vector<double>(rows, 11);
  for (double smoothing : {0.0, 0.2}) {
    const auto r = cross_entropy(rows, classes, x, labels, none, smoothing, dloss);
    const auto numeric = central_differences(x, difference_step, [&] {
      double sum = 0;
      for (int64_t n = 0; n < rows; ++n) sum += dloss[index(n)] * loss_reference(classes, x.data() + n * classes, labels[index(n)], smoothing);
      return sum;
    });
    CHECK(largest_magnitude(numeric) > 1e-2);
    CHECK(first_difference(r.dlogits, numeric, difference_tolerance) == "");
  }
}

TEST_CASE("cross-entropy: ignored rows (C07), masked classes, large logits") {
  const auto c07 = cross_entropy<float>(2, 3, {2, 0, 0, 0, 0, 0}, {0, -1}, -1, 0, {1, 1});
  CHECK(c07.loss[0] == Approx(0.239545).epsilon(2e-6));
  CHECK(c07.loss[1] == 0);
  CHECK(first_difference(std::vector<float>(c07.dlogits.begin() + 3, c07.dlogits.end()), std::vector<double>{0, 0, 0}, 0) == "");

  // An ignored row may hold anything.
  const auto junk = cross_entropy<float>(1, 2, {NAN, infinity}, {-1}, -1, 0.1, {1});
  CHECK(junk.loss[0] == 0);
  CHECK(junk.dlogits == std::vector<float>{0, 0});

  // A class masked with -inf.
  const auto masked = cross_entropy<float>(1, 3, {1, -infinity, 1}, {0}, none, 0, {2});
  CHECK(masked.loss[0] == Approx(std::log(2.0)).epsilon(1e-6));
  CHECK(first_difference(masked.dlogits, std::vector<double>{-1, 0, 1}, f32_tolerance) == "");

  // At 1e4 one unit in the last place of the saved log-sum-exp is 1e-3: the gradient must not feel it.
  const auto large = cross_entropy<float>(1, 3, {10000, 9999, 9998.5F}, {1}, none, 0, {1});
  const auto p = reference(false, 1, 3, 1, {0, -1, -1.5});
  CHECK(large.loss[0] == Approx(-std::log(p[1])).epsilon(1e-6));
  CHECK(first_difference(large.dlogits, std::vector<double>{p[0], p[1] - 1, p[2]}, f32_tolerance) == "");
}

TEST_CASE("softmax and cross-entropy: the same bits for every thread count") {
  const auto x = normal_vector<float>(301 * 1000, 12), dy = normal_vector<float>(301 * 1000, 13);
  const auto labels = labels_for(301, 1000, -1);
  CHECK(same_bits_for_all_thread_counts([&] {
    std::vector<float> all;
    for (auto [outer, axis, inner] : {std::array<int64_t, 3>{301, 1000, 1}, {7, 43, 1000}, {100, 301, 10}}) {
      const auto y = forward(false, outer, axis, inner, x);
      append(all, y);
      append(all, backward(false, outer, axis, inner, y, dy));
    }
    const auto r = cross_entropy(301, 1000, x, labels, -1, 0.1, std::vector<float>(301, 0.5F));
    append(all, r.loss);
    append(all, r.dlogits);
    return all;
  }));
}
