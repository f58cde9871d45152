// One loss from many, the loss of log-probabilities, and running statistics on CUDA against the CPU's.

#include <limits>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/fault.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

// Sums are in double on both sides, in another order; the result is rounded to T once.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-7 : 1e-13;

constexpr int64_t ignore = -100;

std::vector<int64_t> labels_of(int64_t n, int64_t classes, uint64_t seed) {
  Rng rng(seed);
  std::vector<int64_t> labels(static_cast<size_t>(n));
  for (int64_t& label : labels) label = rng.below(4) == 0 ? ignore : rng.below(classes);
  return labels;
}

template <class T>
void check_reduce(int64_t n, bool mean, bool labelled, size_t shift) {
  INFO(n << " losses, mean " << mean << ", labels " << labelled << ", shift " << shift);
  const auto losses = normal_vector<T>(n, 1, 2, 1);
  const auto labels = labels_of(n, 5, 2);
  T expected = 0;
  double divisor = 0;
  CpuBackend::loss<T>().reduce(mean, n, losses.data(), labelled ? labels.data() : nullptr, ignore, &expected, &divisor);
  const DeviceArray<T> from(losses, shift), y(1);
  const DeviceArray<int64_t> classes(labels);
  const DeviceArray<double> by(1);
  CudaBackend::loss<T>().reduce(mean, n, from.data(), labelled ? classes.data() : nullptr, ignore, y.data(), by.data());
  REQUIRE(by.host()[0] == divisor);
  const double scale = std::max(1.0, std::abs(static_cast<double>(expected)));
  REQUIRE(std::abs(static_cast<double>(y.host()[0]) - static_cast<double>(expected)) <= tolerance<T> * scale);

  std::vector<T> gradients(losses.size(), T(7));
  const T dy = T(0.3);
  CpuBackend::loss<T>().reduce_backward(n, &dy, &divisor, gradients.data());
  const DeviceArray<T> upstream(std::vector<T>{dy}), dlosses(losses.size(), shift);
  CudaBackend::loss<T>().reduce_backward(n, upstream.data(), by.data(), dlosses.data());
  REQUIRE(dlosses.host() == gradients);
}

template <class T>
void check_nll(int64_t rows, int64_t classes) {
  INFO("[" << rows << ", " << classes << "]");
  const auto scores = normal_vector<T>(rows * classes, 3), dlosses = normal_vector<T>(rows, 4);
  const auto labels = labels_of(rows, classes, 5);
  std::vector<T> losses(dlosses.size()), gradient(scores.size());
  CpuBackend::loss<T>().nll(rows, classes, scores.data(), labels.data(), ignore, losses.data());
  CpuBackend::loss<T>().nll_backward(rows, classes, dlosses.data(), labels.data(), ignore, gradient.data());
  const DeviceArray<T> x(scores), upstream(dlosses), y(losses.size()), dx(gradient.size());
  const DeviceArray<int64_t> on_device(labels);
  CudaBackend::loss<T>().nll(rows, classes, x.data(), on_device.data(), ignore, y.data());
  CudaBackend::loss<T>().nll_backward(rows, classes, upstream.data(), on_device.data(), ignore, dx.data());
  REQUIRE(y.host() == losses);
  REQUIRE(dx.host() == gradient);
}

template <class T>
struct Statistics {
  std::vector<T> mean, var, batch_mean, batch_var;
  std::vector<int64_t> tracked{3};
  explicit Statistics(int64_t n)
      : mean(normal_vector<T>(n, 6)), var(normal_vector<T>(n, 7)), batch_mean(normal_vector<T>(n, 8)), batch_var(normal_vector<T>(n, 9)) {}
};

template <class T>
void check_running(Statistics<T> s, bool has_var, bool cumulative, bool moves) {
  const auto n = static_cast<int64_t>(s.mean.size());
  INFO(n << " channels, var " << has_var << ", cumulative " << cumulative);
  const DeviceArray<T> mean(s.mean), var(s.var), batch_mean(s.batch_mean), batch_var(s.batch_var);
  const DeviceArray<int64_t> tracked(s.tracked);
  const Statistics<T> before = s;
  RunningChannels<T> work{.channels = n, .momentum = 0.3, .cumulative = cumulative, .unbiased = 1.25};
  RunningChannels<T> there = work;
  work.batch_mean = s.batch_mean.data(), work.mean = s.mean.data(), work.batches_tracked = s.tracked.data();
  there.batch_mean = batch_mean.data(), there.mean = mean.data(), there.batches_tracked = tracked.data();
  if (has_var) {
    work.batch_var = s.batch_var.data(), work.var = s.var.data();
    there.batch_var = batch_var.data(), there.var = var.data();
  }
  CpuBackend::norm<T>().move_running(work);
  CudaBackend::norm<T>().move_running(there);
  REQUIRE(tracked.host() == s.tracked);
  REQUIRE(s.tracked[0] == (moves ? 4 : 3));
  REQUIRE((moves || n == 0) == (s.mean != before.mean || n == 0));
  REQUIRE(first_difference(mean.host(), s.mean, tolerance<T>) == "");
  REQUIRE(first_difference(var.host(), s.var, tolerance<T>) == "");
}

}  // namespace

TEST_CASE("cuda loss: sums and means, in one block and in several") {
  for (const int64_t n : {0, 1, 7, 300, 16384, 16385, 70001})
    for (const bool labelled : {false, true}) {
      check_reduce<float>(n, true, labelled, n % 2 == 0 ? 0 : 1);
      check_reduce<float>(n, false, labelled, 0);
    }
  check_reduce<double>(1000, true, true, 1);
  check_reduce<double>(20000, false, false, 0);
}

TEST_CASE("cuda loss: with no label that counts the divisor is 1") {
  const std::vector<int64_t> labels(9, ignore);
  const DeviceArray<int64_t> on_device(labels);
  const DeviceArray<float> losses(std::vector<float>(9, 0.0F)), y(1);
  const DeviceArray<double> by(1);
  CudaBackend::loss<float>().reduce(true, 9, losses.data(), on_device.data(), ignore, y.data(), by.data());
  CHECK((y.host()[0] == 0 && by.host()[0] == 1));
}

TEST_CASE("cuda nll_loss: values and gradients are the CPU's") {
  for (const auto& [rows, classes] : {std::pair<int64_t, int64_t>{0, 3}, {1, 1}, {7, 10}, {1000, 13}}) {
    check_nll<float>(rows, classes);
    check_nll<double>(rows, classes);
  }
}

TEST_CASE("cuda nll_loss: a label out of range counts for nothing and is reported") {
  const DeviceArray<float> scores(std::vector<float>(12, 0.5F)), losses(4), dx(12);
  const DeviceArray<int64_t> labels(std::vector<int64_t>{0, 3, -1, ignore});
  CudaBackend::loss<float>().nll(4, 3, scores.data(), labels.data(), ignore, losses.data());
  CHECK(losses.host() == std::vector<float>{-0.5F, 0, 0, 0});
  CHECK_THROWS_WITH(cuda::throw_if_fault(), contains("[nll_loss] labels: ") && contains("out of range 0 to 2"));
  const DeviceArray<float> upstream(std::vector<float>(4, 1.0F));
  CudaBackend::loss<float>().nll_backward(4, 3, upstream.data(), labels.data(), ignore, dx.data());
  CHECK_THROWS_WITH(cuda::throw_if_fault(), contains("[nll_loss] labels: "));
  CHECK(dx.host() == std::vector<float>{-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("cuda running statistics: moved as on the CPU; a batch that is not finite is left out whole") {
  for (const int64_t n : {0, 1, 33, 1000}) {
    for (const bool has_var : {false, true})
      for (const bool cumulative : {false, true}) {
        check_running(Statistics<float>(n), has_var, cumulative, true);
        check_running(Statistics<double>(n), has_var, cumulative, true);
      }
    if (n == 0) continue;
    for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF}) {
      Statistics<float> of_mean(n), of_var(n);
      of_mean.batch_mean.back() = bad;
      of_var.batch_var.back() = bad;
      check_running(of_mean, true, false, false);
      check_running(of_var, true, true, false);
    }
  }
}
