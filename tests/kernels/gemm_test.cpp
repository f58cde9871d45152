// Every path of gemm (skinny, blocked, BLAS, packed, batched) against a product in long double.

#include <algorithm>
#include <array>

#include "kernels/cpu/gemm_own.h"
#include "kernels/cpu/gemm_split.h"
#include "kernels/kernel_test.h"

using namespace lamina;
using namespace lamina::test;
using kernels::Matrix;

namespace {

// Terms are below 1: k roundings of partial sums of size sqrt(k) / 3 add up to a fraction of eps k; beta C + bias is below 2.
template <class T>
double tolerance(int64_t k) {
  return 2 * std::numeric_limits<T>::epsilon() * (static_cast<double>(k) + 2);
}

struct Case {
  int64_t m, n, k;
  int64_t gap = 0;  // extra elements in each row of A, B and C
};

template <class T>
struct Problem {
  Case size;
  bool ta, tb;
  T beta;
  bool with_bias;
  int64_t lda, ldb, ldc;
  std::vector<T> a, b, c, bias;

  Problem(const Case& s, bool trans_a, bool trans_b, double beta_value, bool bias_given)
      : size(s),
        ta(trans_a),
        tb(trans_b),
        beta(static_cast<T>(beta_value)),
        with_bias(bias_given),
        lda(std::max<int64_t>(1, (ta ? s.m : s.k) + s.gap)),
        ldb(std::max<int64_t>(1, (tb ? s.k : s.n) + s.gap)),
        ldc(std::max<int64_t>(1, s.n + s.gap)) {
    a = random_values<T>((ta ? s.k : s.m) * lda, 1);
    b = random_values<T>((tb ? s.n : s.k) * ldb, 2);
    c = random_values<T>(s.m * ldc, 3);
    bias = random_values<T>(s.n, 4);
    if (beta == T(0)) std::fill(c.begin(), c.end(), static_cast<T>(not_a_number));  // I01: beta = 0 must not read C
  }

  Matrix<T> view_a() const { return {a.data(), lda, ta}; }
  Matrix<T> view_b() const { return {b.data(), ldb, tb}; }
  const T* bias_or_null() const { return with_bias ? bias.data() : nullptr; }

  /// The largest error of `result` (a copy of c that a kernel has worked on); infinite if it wrote between the rows.
  double error(const std::vector<T>& result) const {
    double largest = 0;
    for (int64_t i = 0; i < size.m; ++i) {
      for (int64_t j = 0; j < ldc; ++j) {
        const size_t at = static_cast<size_t>(i * ldc + j);
        if (j >= size.n) {
          if (std::memcmp(&result[at], &c[at], sizeof(T)) != 0) return infinity;
          continue;
        }
        long double sum =
            (beta == T(0) ? 0.0L : static_cast<long double>(beta) * c[at]) + (with_bias ? static_cast<long double>(bias[static_cast<size_t>(j)]) : 0);
        for (int64_t p = 0; p < size.k; ++p) {
          sum += static_cast<long double>(a[static_cast<size_t>(ta ? p * lda + i : i * lda + p)]) *
                 b[static_cast<size_t>(tb ? j * ldb + p : p * ldb + j)];
        }
        const double off = static_cast<double>(std::abs(sum - static_cast<long double>(result[at])));
        largest = std::isnan(off) ? infinity : std::max(largest, off);
      }
    }
    return largest;
  }
};

const Case kCases[] = {
    {1, 1, 1},        {2, 4, 3},         {1, 37, 53, 3}, {4, 100, 84},      {4, 61, 129, 5},   {3, 33, 65},       {5, 7, 301},      {13, 67, 45, 1},
    {16, 64, 64},     {17, 35, 40},      {40, 10, 77},   {64, 1, 33, 2},    {1, 1, 500},       {33, 65, 4},       {70, 130, 9, 7},  {65, 66, 16},
    {41, 43, 47, 2},  {130, 70, 90},     {12, 32, 20},   {24, 96, 50},      {0, 5, 3},         {5, 0, 3},         {2, 3, 0},        {2, 3, 0, 4},
    {0, 0, 0},        {19, 300, 3},      {2, 1100, 6},   {100, 129, 1, 1},  {3, 49, 8},        {14, 25, 8, 1},    {3, 400, 331, 3}, {4, 1030, 515, 1},
    {5, 40, 2100, 1}, {30, 70, 1100, 2}, {300, 1, 200},  {150, 140, 60, 1}, {133, 9, 1030, 1}, {9, 133, 1030, 1},
};

}  // namespace

TEMPLATE_TEST_CASE("gemm: all shapes, layouts, beta and bias", "[kernels]", float, double) {
  const auto& kernel = kernels::CpuBackend::gemm<TestType>();
  for (const Case& size : kCases) {
    for (int options = 0; options < 24; ++options) {
      const double beta = std::array<double, 3>{0, 1, -0.5}[static_cast<size_t>(options / 8)];
      const Problem<TestType> problem(size, options & 1, options & 2, beta, options & 4);
      CAPTURE(size.m, size.n, size.k, size.gap, problem.ta, problem.tb, beta, problem.with_bias);

      auto c = problem.c;
      kernel.gemm(size.m, size.n, size.k, problem.view_a(), problem.view_b(), problem.beta, c.data(), problem.ldc, problem.bias_or_null());
      CHECK(problem.error(c) < tolerance<TestType>(size.k));

      c = problem.c;
      const auto packed = kernel.pack(size.k, size.n, problem.view_b());
      CHECK(packed.k == size.k);
      CHECK(packed.n == size.n);
      kernel.gemm(size.m, problem.view_a(), packed, problem.beta, c.data(), problem.ldc, problem.bias_or_null());
      CHECK(problem.error(c) < tolerance<TestType>(size.k));

      c = problem.c;
      kernels::cpu::own_gemm<TestType>(size.m, size.n, size.k, problem.view_a(), problem.view_b(), problem.beta, c.data(), problem.ldc,
                                       problem.bias_or_null());
      CHECK(problem.error(c) < tolerance<TestType>(size.k));

      c = problem.c;
      kernels::cpu::blocked_gemm<TestType>(size.m, size.n, size.k, problem.view_a(), problem.view_b(), problem.beta, c.data(), problem.ldc,
                                           problem.bias_or_null());
      CHECK(problem.error(c) < tolerance<TestType>(size.k));

      if constexpr (std::is_same_v<TestType, float>) {
        c = problem.c;
        kernels::cpu::split_gemm(size.m, size.n, size.k, problem.view_a(), problem.view_b(), problem.beta, c.data(), problem.ldc,
                                 problem.bias_or_null());
        CHECK(problem.error(c) < tolerance<TestType>(size.k));
      }
    }
  }
}

TEST_CASE("gemm: own kernels give the same bits for every thread count", "[kernels]") {
  const auto& kernel = kernels::CpuBackend::gemm<float>();
  for (const Case& size : {Case{4, 1000, 784}, Case{4, 784, 1000}, Case{1000, 784, 4}, Case{15, 333, 517, 3}, Case{301, 203, 7}, Case{128, 700, 131},
                           Case{100, 600, 1100, 1}}) {
    for (int options = 0; options < 4; ++options) {
      const Problem<float> problem(size, options & 1, options & 2, 1, true);
      CAPTURE(size.m, size.n, size.k, problem.ta, problem.tb);
      const auto packed = kernel.pack(size.k, size.n, problem.view_b());
      std::vector<float> own, blocked, with_panels;
      for (const int count : {1, 2, 3, 8}) {
        const Threads threads(count);
        auto c = problem.c, d = problem.c, e = problem.c;
        kernels::cpu::own_gemm<float>(size.m, size.n, size.k, problem.view_a(), problem.view_b(), 1, c.data(), problem.ldc, problem.bias.data());
        kernel.gemm(size.m, problem.view_a(), packed, 1, d.data(), problem.ldc, problem.bias.data());
        kernels::cpu::blocked_gemm<float>(size.m, size.n, size.k, problem.view_a(), problem.view_b(), 1, e.data(), problem.ldc, problem.bias.data());
        if (count == 1) {
          own = c;
          blocked = e;
          with_panels = d;
          CHECK(problem.error(c) < tolerance<float>(size.k));
        }
        CHECK(same_bits(c, own));
        CHECK(same_bits(d, with_panels));
        CHECK(same_bits(e, blocked));
      }
    }
  }
}

TEST_CASE("gemm: row-major, by hand (H03)", "[kernels]") {
  const std::vector<double> a = {1, 2, 3, 4, 5, 6}, b = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, right = {38, 44, 50, 56, 83, 98, 113, 128};
  const std::vector<double> at = {1, 4, 2, 5, 3, 6}, bt = {1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12};
  const auto& kernel = kernels::CpuBackend::gemm<double>();
  for (int options = 0; options < 4; ++options) {
    const bool ta = options & 1, tb = options & 2;
    const Matrix<double> left{ta ? at.data() : a.data(), ta ? 2 : 3, ta}, other{tb ? bt.data() : b.data(), tb ? 3 : 4, tb};
    std::vector<double> c(8, not_a_number);
    kernel.gemm(2, 4, 3, left, other, 0, c.data(), 4, nullptr);
    CHECK(c == right);
    c.assign(8, not_a_number);
    kernel.gemm(2, left, kernel.pack(3, 4, other), 0, c.data(), 4, nullptr);
    CHECK(c == right);
  }
}

TEST_CASE("gemm: an empty inner dimension leaves nothing stale (I03)", "[kernels]") {
  const auto& kernel = kernels::CpuBackend::gemm<float>();
  const std::vector<float> bias = {1, 2, 3};
  std::vector<float> c(6, 7);
  kernel.gemm(2, 3, 0, {nullptr, 1, false}, {nullptr, 3, false}, 0, c.data(), 3, nullptr);
  CHECK(c == std::vector<float>(6, 0));
  c.assign(6, 7);
  kernel.gemm(2, 3, 0, {nullptr, 1, false}, {nullptr, 3, false}, 1, c.data(), 3, nullptr);
  CHECK(c == std::vector<float>(6, 7));
  kernel.gemm(2, {nullptr, 1, false}, kernel.pack(0, 3, {nullptr, 3, false}), 0, c.data(), 3, bias.data());
  CHECK(c == std::vector<float>{1, 2, 3, 1, 2, 3});
}

TEST_CASE("gemm: a view of columns equals its copy (I04)", "[kernels]") {
  const std::vector<float> wide = {0, 1, 2, 0, 0, 0, 3, 4, 0, 0, 0, 5, 6, 0, 0}, copy = {1, 2, 3, 4, 5, 6}, b = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> from_view(12), from_copy(12);
  const auto& kernel = kernels::CpuBackend::gemm<float>();
  kernel.gemm(3, 4, 2, {wide.data() + 1, 5, false}, {b.data(), 4, false}, 0, from_view.data(), 4, nullptr);
  kernel.gemm(3, 4, 2, {copy.data(), 2, false}, {b.data(), 4, false}, 0, from_copy.data(), 4, nullptr);
  CHECK(from_view == from_copy);
  CHECK(from_view == std::vector<float>{11, 14, 17, 20, 23, 30, 37, 44, 35, 46, 57, 68});
}

TEMPLATE_TEST_CASE("gemm_batched equals single products", "[kernels]", float, double) {
  const auto& kernel = kernels::CpuBackend::gemm<TestType>();
  for (const Case& size : {Case{3, 5, 7}, Case{17, 9, 33}, Case{80, 70, 90}, Case{4, 4, 0}, Case{0, 3, 2}}) {
    for (int options = 0; options < 16; ++options) {
      const bool ta = options & 1, tb = options & 2, shared_b = options & 4;
      const double beta = options & 8 ? 0.5 : 0;
      const int64_t count = 5, stride_a = size.m * size.k + 3, stride_b = shared_b ? 0 : size.k * size.n, stride_c = size.m * size.n + 2;
      const auto a = random_values<TestType>(count * stride_a, 1), b = random_values<TestType>(count * size.k * size.n + 1, 2);
      auto c = beta == 0 ? std::vector<TestType>(static_cast<size_t>(count * stride_c), static_cast<TestType>(not_a_number))
                         : random_values<TestType>(count * stride_c, 3);
      const auto before = c;
      const int64_t lda = std::max<int64_t>(1, ta ? size.m : size.k), ldb = std::max<int64_t>(1, tb ? size.k : size.n),
                    ldc = std::max<int64_t>(1, size.n);
      kernel.gemm_batched(count, size.m, size.n, size.k, {a.data(), lda, ta}, stride_a, {b.data(), ldb, tb}, stride_b, static_cast<TestType>(beta),
                          c.data(), ldc, stride_c);
      double largest = 0;
      for (int64_t t = 0; t < count; ++t) {
        for (int64_t i = 0; i < size.m; ++i) {
          for (int64_t j = 0; j < size.n; ++j) {
            const size_t at = static_cast<size_t>(t * stride_c + i * ldc + j);
            long double sum = beta == 0 ? 0 : beta * before[at];
            for (int64_t p = 0; p < size.k; ++p) {
              sum += static_cast<long double>(a[static_cast<size_t>(t * stride_a + (ta ? p * lda + i : i * lda + p))]) *
                     b[static_cast<size_t>(t * stride_b + (tb ? j * ldb + p : p * ldb + j))];
            }
            const double off = std::abs(static_cast<double>(sum - c[at]));
            largest = std::isnan(off) ? infinity : std::max(largest, off);
          }
        }
      }
      CAPTURE(size.m, size.n, size.k, ta, tb, shared_b, beta);
      CHECK(largest < tolerance<TestType>(size.k));
    }
  }
}

TEST_CASE("gemm: integers are exact every time, alone and beside other loops (I05)", "[kernels]") {
  const auto& kernel = kernels::CpuBackend::gemm<float>();
  std::vector<float> a(64 * 100), b(100 * 64), expected(64 * 64), c(64 * 64);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(static_cast<int>(i * 7919 % 7) - 3);
    b[i] = static_cast<float>(static_cast<int>(i * 104729 % 7) - 3);
  }
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < 64; ++j) {
      for (size_t p = 0; p < 100; ++p) expected[i * 64 + j] += a[i * 100 + p] * b[p * 64 + j];
    }
  }
  for (const int count : {1, 2, 8}) {
    const Threads threads(count);
    bool right = true;
    for (int repeat = 0; repeat < 200; ++repeat) {
      parallel_for(4096, 16, [&](int64_t begin, int64_t end) { std::fill(c.begin() + begin, c.begin() + end, 1e9f); });
      kernel.gemm(64, 64, 100, {a.data(), 100, false}, {b.data(), 64, false}, 0, c.data(), 64, nullptr);
      right = right && c == expected;
    }
    CHECK(right);
  }
}
