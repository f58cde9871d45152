// The statistics of rows, alone and side by side, in every instruction set that this machine has, against long double.

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/vectors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/measure_test.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/measure.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::HWY_NAMESPACE {

// Of `count` rows, 1 or 8, which stand one after another.
template <class T>
std::vector<Statistics<T>> measured(bool centre, double eps, int64_t n, const std::vector<T>& x) {
  std::vector<Statistics<T>> result;
  if (x.size() == static_cast<size_t>(n)) {
    result.push_back(measure<T>(centre, eps, n, x.data()));
  } else {
    const T* const rows[8] = {x.data(),         x.data() + n,     x.data() + 2 * n, x.data() + 3 * n,
                              x.data() + 4 * n, x.data() + 5 * n, x.data() + 6 * n, x.data() + 7 * n};
    for (const Statistics<T>& s : measure_rows<8, T>(centre, eps, n, rows)) result.push_back(s);
  }
  return result;
}
std::vector<Statistics<float>> measured_f32(bool centre, double eps, int64_t n, const std::vector<float>& x) { return measured(centre, eps, n, x); }
std::vector<Statistics<double>> measured_f64(bool centre, double eps, int64_t n, const std::vector<double>& x) { return measured(centre, eps, n, x); }

}  // namespace lamina::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels {
HWY_EXPORT(measured_f32);
HWY_EXPORT(measured_f64);
}  // namespace lamina::kernels

namespace {

using namespace lamina::kernels;
using namespace lamina::test;

std::vector<Statistics<float>> measured(bool centre, double eps, int64_t n, const std::vector<float>& x) {
  return HWY_DYNAMIC_DISPATCH(measured_f32)(centre, eps, n, x);
}
std::vector<Statistics<double>> measured(bool centre, double eps, int64_t n, const std::vector<double>& x) {
  return HWY_DYNAMIC_DISPATCH(measured_f64)(centre, eps, n, x);
}

template <class F>
void for_each_target(F&& f) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    INFO(hwy::TargetName(target));
    f();
  }
  hwy::SetSupportedTargetsForTest(0);
}

constexpr const char* kinds[] = {"normal",       "large offset",           "outlier first", "outliers first",
                                 "outlier last", "offset after the first", "huge",          "tiny"};

template <class T>
std::vector<T> row_of(size_t kind, int64_t n, uint64_t seed) {
  std::vector<T> x = normal_vector<T>(n, seed);
  const double outlier = sizeof(T) == 4 ? 1e10 : 1e20, far = sizeof(T) == 4 ? 1e5 : 1e13, huge = sizeof(T) == 4 ? 1e30 : 1e300;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]);
    const bool moved = (kind == 1) || (kind == 2 && i == 0) || (kind == 3 && i < 16) || (kind == 4 && i + 1 == x.size()) || (kind == 5 && i >= 16);
    if (moved) x[i] = static_cast<T>(kind == 1 || kind == 5 ? far + d : kind == 3 ? outlier * d : outlier);
    if (kind >= 6) x[i] = static_cast<T>(kind == 6 ? huge * d : d / huge);
  }
  return x;
}

// A chain of 256 additions, each half a unit off in the same direction (as where an outlier dwarfs all that follows); the root halves it.
template <class T>
constexpr double tolerance = 64 * static_cast<double>(std::numeric_limits<T>::epsilon());

template <class T>
void check_row(const Statistics<T>& s, const T* x, int64_t n, bool centre, double eps) {
  const long double origin = centre ? static_cast<long double>(x[0]) : 0, count = static_cast<long double>(n);
  long double mean = 0, square = 0;  // mean: from the origin, since sums at an offset of 1e13 lose digits in long double too
  for (int64_t i = 0; i < n && centre; ++i) mean += (x[i] - origin) / count;
  for (int64_t i = 0; i < n; ++i) square += (x[i] - origin - mean) * (x[i] - origin - mean) / count;
  const long double deviation = std::sqrt(square + static_cast<long double>(eps));
  if (deviation == 0) {
    CHECK((s.mean == x[0] && s.shift == 0 && s.rstd == 0));
    return;
  }
  const double of_rstd = std::abs(static_cast<double>(s.rstd * deviation - 1));
  const double of_mean = std::abs(static_cast<double>((s.mean - origin + s.shift - mean) / deviation));
  INFO("rstd off by " << of_rstd << ", mean by " << of_mean << " deviations");
  CHECK((of_rstd < tolerance<T> && of_mean < tolerance<T>));
}

}  // namespace

TEMPLATE_TEST_CASE("row statistics: every instruction set, width and kind of row, alone and beside others", "", float, double) {
  std::vector<int64_t> widths{127, 128, 129, 255, 257, 2047, 2048, 2049, 4100};
  for (int64_t n = 1; n <= 70; ++n) widths.push_back(n);
  for_each_target([&] {
    for (const int64_t n : widths)
      for (const bool centre : {true, false})
        for (const double eps : {0.0, 1e-5}) {
          std::vector<TestType> rows;
          for (size_t kind = 0; kind < 8; ++kind) {
            const std::vector<TestType> row = row_of<TestType>(kind, n, static_cast<uint64_t>(n) * 8 + kind);
            rows.insert(rows.end(), row.begin(), row.end());
          }
          const auto together = measured(centre, eps, n, rows);
          for (size_t kind = 0; kind < 8; ++kind) {
            INFO(kinds[kind] << ", width " << n << ", centre " << centre << ", eps " << eps);
            const std::vector<TestType> row = row_of<TestType>(kind, n, static_cast<uint64_t>(n) * 8 + kind);
            check_row(together[kind], row.data(), n, centre, eps);
            check_row(measured(centre, eps, n, row)[0], row.data(), n, centre, eps);
            std::vector<TestType> copies;
            for (int i = 0; i < 8; ++i) copies.insert(copies.end(), row.begin(), row.end());
            for (const auto& s : measured(centre, eps, n, copies)) REQUIRE(std::memcmp(&s, &together[kind], sizeof s) == 0);
          }
        }
  });
}

TEMPLATE_TEST_CASE("row statistics: a value that is not finite spoils its own row alone, wherever it stands", "", float, double) {
  for_each_target([] {
    for (const int64_t n : {1, 2, 7, 8, 16, 17, 33, 64, 65})
      for (int64_t at = 0; at < n; ++at)
        for (const double bad : {NAN, INFINITY, -INFINITY}) {
          std::vector<TestType> rows = normal_vector<TestType>(8 * n, 5);
          const auto clean = measured(true, 1e-5, n, rows);
          rows[static_cast<size_t>(3 * n + at)] = static_cast<TestType>(bad);
          const auto spoilt = measured(true, 1e-5, n, rows);
          for (size_t r = 0; r < 8; ++r) REQUIRE((r == 3 ? std::isnan(spoilt[r].rstd) : std::memcmp(&spoilt[r], &clean[r], sizeof clean[r]) == 0));
        }
  });
}
#endif  // HWY_ONCE
