// f32 products on a processor's matrix unit (where there is none, the same calls give f32 arithmetic, and must pass as well).

#include <algorithm>
#include <array>
#include <span>

#include "core/matrix_unit.h"
#include "kernels/cpu/gemm_split.h"
#include "kernels/kernel_test.h"

using namespace lamina;
using namespace lamina::test;
using kernels::Matrix;
using kernels::Packed;

namespace {

/// A [m,k] and B [k,n], standing as they are or transposed.
struct Operands {
  int64_t m, n, k;
  bool ta, tb;
  std::vector<float> a, b;

  Operands(int64_t m_, int64_t n_, int64_t k_, int layout, double low = -1) : m(m_), n(n_), k(k_), ta(layout & 1), tb(layout & 2) {
    a = random_values<float>(m * k, 1, low), b = random_values<float>(k * n, 2, low);
  }

  float& a_at(int64_t i, int64_t p) { return a[static_cast<size_t>(ta ? p * m + i : i * k + p)]; }
  float& b_at(int64_t p, int64_t j) { return b[static_cast<size_t>(tb ? j * k + p : p * n + j)]; }
  Matrix<float> view_a() const { return {a.data(), ta ? m : k, ta}; }
  Matrix<float> view_b() const { return {b.data(), tb ? k : n, tb}; }

  std::vector<float> split() const {
    std::vector<float> c(static_cast<size_t>(m * n), static_cast<float>(not_a_number));
    kernels::cpu::split_gemm(m, n, k, view_a(), view_b(), 0, c.data(), n, nullptr);
    return c;
  }
  std::vector<float> in_f32() const {
    std::vector<float> c(static_cast<size_t>(m * n), static_cast<float>(not_a_number));
    kernels::cpu::own_gemm<float>(m, n, k, view_a(), view_b(), 0, c.data(), n, nullptr);
    return c;
  }
  /// Each sum a chain of fused multiply-adds.
  std::vector<float> chains() {
    std::vector<float> c(static_cast<size_t>(m * n));
    for (int64_t i = 0; i < m; ++i)
      for (int64_t p = 0; p < k; ++p)
        for (int64_t j = 0; j < n; ++j) {
          float& sum = c[static_cast<size_t>(i * n + j)];
          sum = std::fma(a_at(i, p), b_at(p, j), sum);
        }
    return c;
  }
  /// The sums, and the sums of magnitudes that errors are measured by; both exact to f64.
  std::pair<std::vector<double>, std::vector<double>> exact() {
    std::vector<double> sums(static_cast<size_t>(m * n)), sizes(sums.size());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t p = 0; p < k; ++p)
        for (int64_t j = 0; j < n; ++j) {
          const double term = static_cast<double>(a_at(i, p)) * static_cast<double>(b_at(p, j));
          sums[static_cast<size_t>(i * n + j)] += term;
          sizes[static_cast<size_t>(i * n + j)] += std::abs(term);
        }
    return {sums, sizes};
  }
};

struct Errors {
  double largest = 0, rms = 0;
};
Errors errors(const std::vector<float>& c, const std::vector<double>& sums, const std::vector<double>& sizes) {
  Errors result;
  for (size_t i = 0; i < c.size(); ++i) {
    const double off = sizes[i] == 0 ? (c[i] == 0 ? 0 : infinity) : std::abs(static_cast<double>(c[i]) - sums[i]) / sizes[i];
    result.largest = std::isnan(off) ? infinity : std::max(result.largest, off);
    result.rms += off * off / static_cast<double>(c.size());
  }
  result.rms = std::sqrt(result.rms);
  return result;
}

constexpr double unit = std::numeric_limits<float>::epsilon() / 2;

}  // namespace

// Here about half as far from it.
TEST_CASE("matrix unit: nearer the exact product than chains of multiply-adds", "[kernels]") {
  // Terms of both signs and of one, whose roundings add up.
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{32, 32, 32}, {33, 65, 100}, {128, 100, 784}, {70, 300, 17}, {96, 40, 1500}})
    for (int layout = 0; layout < 4; ++layout)
      for (const double low : {-1.0, 0.0}) {
        CAPTURE(m, n, k, layout, low);
        Operands of(m, n, k, layout, low);
        const auto [sums, sizes] = of.exact();
        const Errors split = errors(of.split(), sums, sizes), chains = errors(of.chains(), sums, sizes);
        CHECK(split.largest <= std::max(2 * unit, chains.largest));
        CHECK(split.rms <= chains.rms);
      }
}

TEST_CASE("matrix unit: operands of several groups and stretches", "[kernels]") {
  for (int layout = 0; layout < 4; ++layout)
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{450, 510}, {570, 440}}) {
      CAPTURE(m, n, layout);
      Operands of(m, n, 1300, layout);
      const auto [sums, sizes] = of.exact();
      const auto start = random_values<float>(m * n, 3), bias = random_values<float>(n, 4);
      std::vector<float> c = start;
      kernels::cpu::split_gemm(m, n, 1300, of.view_a(), of.view_b(), -0.5F, c.data(), n, bias.data());
      double largest = 0;
      for (size_t i = 0; i < c.size(); ++i) {
        const double expected = sums[i] - 0.5 * static_cast<double>(start[i]) + static_cast<double>(bias[i % static_cast<size_t>(n)]);
        largest = std::max(largest, std::abs(static_cast<double>(c[i]) - expected) / (sizes[i] + 2));
      }
      CHECK(largest < 40 * unit);
      CHECK(largest > 0);
    }
}

TEST_CASE("matrix unit: infinities and NaN stay in their rows and columns", "[kernels]") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{70, 130, 90}, {50, 40, 1300}})  // at the end of a second stretch
    for (int layout = 0; layout < 4; ++layout)
      for (const float value : {inf, -inf, static_cast<float>(not_a_number), std::numeric_limits<float>::max(), 1e30F})
        for (const bool in_a : {true, false}) {
          CAPTURE(m, n, k, layout, value, in_a);
          Operands of(m, n, k, layout);
          const std::vector<float> before = of.split();
          const int64_t row = 41, column = n - 29;
          (in_a ? of.a_at(row, k - 7) : of.b_at(k - 7, column)) = value;
          const std::vector<float> after = of.split(), plain = of.in_f32();
          bool same = true, close = true;
          for (int64_t i = 0; i < m * n; ++i) {
            const auto at = static_cast<size_t>(i);
            const bool touched = in_a ? i / n == row : i % n == column;
            const double scale = touched && std::isfinite(plain[at]) ? std::abs(static_cast<double>(plain[at])) : 1;
            same = same && std::isnan(after[at]) == std::isnan(plain[at]) && std::isinf(after[at]) == std::isinf(plain[at]);
            if (std::isfinite(plain[at]))
              close = close && std::abs(static_cast<double>(after[at]) - static_cast<double>(plain[at])) <= 1e-4 * std::max(1.0, scale);
            if (!touched) close = close && std::abs(static_cast<double>(after[at]) - static_cast<double>(before[at])) < 1e-4;
          }
          CHECK(same);
          CHECK(close);
        }
}

TEST_CASE("matrix unit: operands of any size keep their digits", "[kernels]") {
  for (const int size_a : {-110, -95, -70, -40, 0, 40, 70, 110})
    for (const int size_b : {-110, -95, -70, -40, 0, 40, 70, 110}) {
      if (size_a + size_b < -110 || size_a + size_b > 115) continue;  // beyond f32
      CAPTURE(size_a, size_b);
      Operands of(40, 50, 64, 2);
      for (float& v : of.a) v = std::ldexp(v, size_a);
      for (float& v : of.b) v = std::ldexp(v, size_b);
      const auto [sums, sizes] = of.exact();
      CHECK(errors(of.split(), sums, sizes).largest < 16 * unit);
    }
}

TEST_CASE("matrix unit: a row of small numbers beside large ones keeps its digits", "[kernels]") {
  Operands of(64, 48, 80, 0);
  for (int64_t p = 0; p < 80; ++p) {
    of.a_at(9, p) = std::ldexp(of.a_at(9, p), -80);
    of.a_at(10, p) = std::ldexp(of.a_at(10, p), 50);
    of.a_at(11, p) = 0;
  }
  const auto [sums, sizes] = of.exact();
  CHECK(errors(of.split(), sums, sizes).largest < 16 * unit);
}

TEST_CASE("matrix unit: a product with the identity is exact", "[kernels]") {
  for (int layout = 0; layout < 4; ++layout) {
    Operands of(45, 64, 64, layout);
    for (size_t i = 0; i < of.a.size(); ++i) of.a[i] = std::ldexp(of.a[i], static_cast<int>(i % 140) - 90);
    for (int64_t p = 0; p < 64; ++p)
      for (int64_t j = 0; j < 64; ++j) of.b_at(p, j) = p == j ? 1 : 0;
    const std::vector<float> c = of.split();
    bool exact = true;
    for (int64_t i = 0; i < 45; ++i)
      for (int64_t j = 0; j < 64; ++j) exact = exact && c[static_cast<size_t>(i * 64 + j)] == of.a_at(i, j);
    CAPTURE(layout);
    CHECK(exact);
  }
}

TEST_CASE("matrix unit: the same bits for every thread count", "[kernels]") {
  for (int layout = 0; layout < 4; ++layout) {
    Operands of(300, 410, 700, layout);
    of.a_at(200, 3) = static_cast<float>(not_a_number);
    std::vector<float> one;
    for (const int count : {1, 2, 3, 8}) {
      const Threads threads(count);
      const std::vector<float> c = of.split();
      if (count == 1) one = c;
      CHECK(same_bits(c, one));
    }
  }
}

TEST_CASE("matrix unit: many rows that are not for it, of a packed product", "[kernels]") {
  if (!detail::has_matrix_unit()) return;  // nobody calls it then
  constexpr int64_t rows = 45, n = 70, k = 60;
  Operands of(rows, n, k, 0);
  for (int64_t i = 0; i < rows; ++i)
    if (i % 3 != 1) of.a_at(i, i % k) = 0x1p61F;
  Packed<float> packed = kernels::cpu::pack_panels(k, n, of.view_b());
  kernels::cpu::add_split(of.view_b(), packed);
  REQUIRE(packed.split);
  std::vector<float> c(rows * n);
  const kernels::cpu::SplitFactors factors[] = {{of.a.data(), k, &packed}};
  kernels::cpu::split_product(rows, 0, 3, factors, 0, c.data(), n, nullptr);
  const auto [sums, sizes] = of.exact();
  CHECK(errors(c, sums, sizes).largest < 16 * unit);
}

TEST_CASE("matrix unit: packed operands, rows alone or beside others", "[kernels]") {
  if (!detail::has_matrix_unit()) {
    CHECK(kernels::CpuBackend::gemm<float>().pack(64, 256, {std::vector<float>(64 * 256).data(), 256, false}, 128).split == nullptr);
    return;
  }
  constexpr int64_t rows = 75, n = 130;
  Operands f(rows, n, 50, 0), g(rows, n, 200, 2);
  for (float& v : g.a) v *= 0.5F;
  g.a_at(40, 11) = 3e30F;
  f.a_at(66, 49) = static_cast<float>(not_a_number);
  f.a_at(51, 3) = std::numeric_limits<float>::infinity();
  const auto pack = [](const Operands& of) {
    Packed<float> packed = kernels::cpu::pack_panels(of.k, of.n, of.view_b());
    kernels::cpu::add_split(of.view_b(), packed);
    REQUIRE(packed.split);
    return packed;
  };
  const Packed<float> with_f = pack(f), with_g = pack(g);
  const auto [sums_f, sizes_f] = f.exact();
  const auto [sums_g, sizes_g] = g.exact();
  const auto start = random_values<float>(rows * n, 5), bias = random_values<float>(n, 6);
  // Panels 1 to 4 (the last one of two columns) of the rows [first, last).
  const auto run = [&](int64_t first, int64_t last) {
    std::vector<float> c = start;
    const kernels::cpu::SplitFactors factors[] = {{f.a.data() + first * f.k, f.k, &with_f}, {g.a.data() + first * g.k, g.k, &with_g}};
    kernels::cpu::split_product(last - first, 1, 5, factors, 2, c.data() + first * n, n, bias.data());
    return c;
  };
  const std::vector<float> all = run(0, rows);
  double largest = 0;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const size_t at = static_cast<size_t>(i * n + j);
      if (j < 32) {
        largest = all[at] == start[at] ? largest : infinity;
        continue;
      }
      const double expected = 2 * static_cast<double>(start[at]) + static_cast<double>(bias[static_cast<size_t>(j)]) + sums_f[at] + sums_g[at];
      if (i == 66)
        largest = std::isnan(all[at]) ? largest : infinity;
      else if (i == 51)
        largest = static_cast<double>(all[at]) == sums_f[at] ? largest : infinity;
      else
        largest = std::max(largest, std::abs(static_cast<double>(all[at]) - expected) / (sizes_f[at] + sizes_g[at] + 3));
    }
  CHECK(largest < 16 * unit);
  CHECK(largest > 0);
  for (const auto& [first, last] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {3, 41}, {40, 75}, {64, 70}}) {
    const std::vector<float> some = run(first, last);
    CAPTURE(first, last);
    CHECK(std::memcmp(&some[static_cast<size_t>(first * n)], &all[static_cast<size_t>(first * n)],
                      static_cast<size_t>((last - first) * n) * sizeof(float)) == 0);
  }
}

TEST_CASE("matrix unit: weights that are not for it are not laid out for it", "[kernels]") {
  for (const float value : {static_cast<float>(not_a_number), std::numeric_limits<float>::infinity(), 1e20F, 1e-30F}) {
    std::vector<float> w(64 * 256, value == 1e-30F ? value : 0.5F);
    w[100] = value;
    CHECK(kernels::CpuBackend::gemm<float>().pack(64, 256, {w.data(), 256, false}, 128).split == nullptr);
  }
}

TEST_CASE("matrix unit: sums of terms for two results", "[kernels]") {
  if (!detail::has_matrix_unit()) return;  // nobody calls it then
  constexpr int64_t m = 100, n[] = {70, 9};
  const std::array<int64_t, 3> rows = {44, 64, 7};
  for (const float spoilt : {1.0F, std::numeric_limits<float>::infinity(), 1e-30F}) {
    CAPTURE(spoilt);
    std::vector<std::vector<float>> a, b[2];
    for (size_t t = 0; t < 3; ++t) {
      a.push_back(random_values<float>(rows[t] * m, 10 + t));
      for (float& v : a.back()) v *= spoilt == 1e-30F ? spoilt : 1;  // too small for the unit
      for (size_t i = 0; i < 2; ++i) b[i].push_back(random_values<float>(rows[t] * n[i], 20 + 3 * i + t));
    }
    if (spoilt > 1) a[1][5 * m + 40] = spoilt;  // row 40 of the results
    std::vector<kernels::cpu::SplitTerms> terms;
    for (size_t t = 0; t < 3; ++t) terms.push_back({a[t].data(), {t == 2 ? nullptr : b[0][t].data(), b[1][t].data()}, rows[t]});
    std::vector<float> c[2];
    for (size_t i = 0; i < 2; ++i) c[i] = random_values<float>(m * n[i], 30 + i);
    const std::vector<float> start[2] = {c[0], c[1]};
    const std::array<kernels::cpu::SplitSums, 2> results{{{n[0], 0.5F, c[0].data()}, {n[1], 0, c[1].data()}}};
    kernels::cpu::split_sums(1, 4, terms, m, results);
    for (size_t i = 0; i < 2; ++i)
      for (int64_t r = 0; r < m; ++r)
        for (int64_t j = 0; j < n[i]; ++j) {
          const size_t at = static_cast<size_t>(r * n[i] + j);
          double sum = i == 0 ? 0.5 * static_cast<double>(start[0][at]) : 0, size = std::abs(sum);
          for (size_t t = 0; t < (i == 0 ? 2U : 3U); ++t)
            for (int64_t p = 0; p < rows[t]; ++p) {
              const double term =
                  static_cast<double>(a[t][static_cast<size_t>(p * m + r)]) * static_cast<double>(b[i][t][static_cast<size_t>(p * n[i] + j)]);
              sum += term, size += std::abs(term);
            }
          const bool right = r < 32               ? c[i][at] == start[i][at]
                             : std::isfinite(sum) ? std::abs(static_cast<double>(c[i][at]) - sum) <= 16 * unit * size
                                                  : static_cast<double>(c[i][at]) == sum;
          if (!right) FAIL("result " << i << " [" << r << ", " << j << "]: " << c[i][at] << ", expected " << sum);
        }
    CHECK(c[0] != start[0]);
  }
}
