// Products on CUDA against the CPU's, which its own tests hold against the definition.

#include <limits>

#include "kernels/cuda/backend.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

// Terms are of order 1, and both sides round k partial sums of size sqrt(k).
template <class T>
double tolerance(int64_t k) {
  return 4 * static_cast<double>(std::numeric_limits<T>::epsilon()) * (static_cast<double>(k) + 2);
}

/// A product and its views: rows of A, B and C have `gap` elements after them, which nobody may touch.
template <class T>
struct Problem {
  int64_t m, n, k, gap;
  bool ta, tb;
  int64_t lda = leading(ta ? m : k), ldb = leading(tb ? k : n), ldc = leading(n);
  std::vector<T> a = normal_vector<T>((ta ? k : m) * lda, 1), b = normal_vector<T>((tb ? n : k) * ldb, 2), c = normal_vector<T>(m * ldc, 3),
                 bias = normal_vector<T>(n, 4);

  int64_t leading(int64_t columns) const { return std::max<int64_t>(1, columns + gap); }
  Matrix<T> view_a(const T* data) const { return {data, lda, ta}; }
  Matrix<T> view_b(const T* data) const { return {data, ldb, tb}; }
};

enum class Way { plain, packed };

template <class T>
void check_product(const Problem<T>& p, T beta, bool with_bias, Way way, size_t shift) {
  INFO("m " << p.m << ", n " << p.n << ", k " << p.k << ", gap " << p.gap << ", transposed " << p.ta << p.tb << ", beta " << beta << ", bias "
            << with_bias << ", packed " << (way == Way::packed) << ", shift " << shift);
  std::vector<T> expected = p.c;
  if (beta == T(0)) std::fill(expected.begin(), expected.end(), std::numeric_limits<T>::quiet_NaN());  // I01: it must not be read
  const DeviceArray<T> a(p.a, shift), b(p.b, shift), c(expected, shift), bias(p.bias, shift);
  const auto run = [&](const GemmKernels<T>& kernels, const T* from_a, const T* from_b, T* to, const T* with) {
    if (way == Way::plain)
      kernels.gemm(p.m, p.n, p.k, p.view_a(from_a), p.view_b(from_b), beta, to, p.ldc, with_bias ? with : nullptr);
    else
      kernels.gemm(p.m, p.view_a(from_a), kernels.pack(p.k, p.n, p.view_b(from_b)), beta, to, p.ldc, with_bias ? with : nullptr);
  };
  run(CpuBackend::gemm<T>(), p.a.data(), p.b.data(), expected.data(), p.bias.data());
  run(CudaBackend::gemm<T>(), a.data(), b.data(), c.data(), bias.data());
  REQUIRE(first_difference(c.host(), expected, tolerance<T>(p.k)) == "");
}

template <class T>
void check_products(int64_t m, int64_t n, int64_t k) {
  for (const int64_t gap : {0, 3})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        const Problem<T> problem{m, n, k, gap, ta, tb};
        for (const T beta : {T(0), T(1), T(0.5)}) check_product(problem, beta, beta == T(0.5), Way::plain, 0);
        check_product(problem, T(0), true, Way::plain, 1);
        check_product(problem, T(0), false, Way::packed, 0);
        check_product(problem, T(1), true, Way::packed, 0);
      }
}

/// Rows of C have a gap after them, and so have the matrices: nobody may touch it.
template <class T>
void check_batched(int64_t count, int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool share_b, T beta) {
  INFO(count << " products of m " << m << ", n " << n << ", k " << k << ", transposed " << ta << tb << ", beta " << beta);
  const int64_t ldc = n + 1, stride_c = m * ldc + 2;
  const auto a = normal_vector<T>(count * m * k, 1), b = normal_vector<T>(share_b ? n * k : count * n * k, 2);
  auto expected = normal_vector<T>(count * stride_c, 3);
  if (beta == T(0)) std::fill(expected.begin(), expected.end(), std::numeric_limits<T>::quiet_NaN());
  const DeviceArray<T> device_a(a), device_b(b), c(expected);
  const auto run = [&](const GemmKernels<T>& kernels, const T* from_a, const T* from_b, T* to) {
    kernels.gemm_batched(count, m, n, k, {from_a, std::max<int64_t>(1, ta ? m : k), ta}, m * k, {from_b, std::max<int64_t>(1, tb ? k : n), tb},
                         share_b ? 0 : n * k, beta, to, ldc, stride_c);
  };
  run(CpuBackend::gemm<T>(), a.data(), b.data(), expected.data());
  run(CudaBackend::gemm<T>(), device_a.data(), device_b.data(), c.data());
  REQUIRE(first_difference(c.host(), expected, tolerance<T>(k)) == "");
}

}  // namespace

TEST_CASE("cuda gemm: all transpositions, leading dimensions, beta and bias, unaligned starts (I01)") {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {3, 5, 4}, {1, 12, 7}, {9, 1, 20}, {32, 24, 16}, {17, 33, 65}}) {
    check_products<float>(m, n, k);
    check_products<double>(m, n, k);
  }
}

TEST_CASE("cuda gemm: empty sizes; an inner size of 0 gives beta C + bias (I03)") {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{0, 3, 4}, {3, 0, 4}, {0, 0, 0}, {2, 3, 0}, {1, 8, 0}, {300, 40, 0}}) {
    check_products<float>(m, n, k);
    check_products<double>(m, n, k);
  }
  const auto& kernels = CudaBackend::gemm<float>();
  const DeviceArray<float> c(std::vector<float>(6, 7)), bias(std::vector<float>{1, 2, 3});
  kernels.gemm(2, 3, 0, {nullptr, 1, false}, {nullptr, 3, false}, 1, c.data(), 3);
  CHECK(c.host() == std::vector<float>(6, 7));
  kernels.gemm(2, 3, 0, {nullptr, 1, false}, {nullptr, 3, false}, 2, c.data(), 3, bias.data());
  CHECK(c.host() == std::vector<float>{15, 16, 17, 15, 16, 17});
  kernels.gemm(2, 3, 0, {nullptr, 1, false}, {nullptr, 3, false}, 0, c.data(), 3);
  CHECK(c.host() == std::vector<float>(6, 0));
}

TEST_CASE("cuda gemm: row-major means row-major (H03)") {
  const auto& kernels = CudaBackend::gemm<float>();
  const DeviceArray<float> a(std::vector<float>{1, 2, 3, 4, 5, 6}), b(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), c(8);
  const DeviceArray<float> a_t(std::vector<float>{1, 4, 2, 5, 3, 6}), b_t(std::vector<float>{1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12});
  const std::vector<float> product{38, 44, 50, 56, 83, 98, 113, 128};
  kernels.gemm(2, 4, 3, {a.data(), 3, false}, {b.data(), 4, false}, 0, c.data(), 4);
  CHECK(c.host() == product);
  kernels.gemm(2, 4, 3, {a_t.data(), 2, true}, {b_t.data(), 3, true}, 0, c.data(), 4);
  CHECK(c.host() == product);
  kernels.gemm(2, 4, 3, {a_t.data(), 2, true}, {b.data(), 4, false}, 1, c.data(), 4);
  CHECK(c.host() == std::vector<float>{76, 88, 100, 112, 166, 196, 226, 256});
}

TEST_CASE("cuda gemm: the leading dimension of a single row says nothing") {
  const auto& kernels = CudaBackend::gemm<float>();
  const DeviceArray<float> a(std::vector<float>{1, 2, 3}), b(std::vector<float>{1, 2, 3}), c(1);
  kernels.gemm(1, 1, 3, {a.data(), 1, false}, {b.data(), 1, true}, 0, c.data(), 1);
  CHECK(c.host() == std::vector<float>{14});
  const DeviceArray<float> wide(3);
  kernels.gemm(1, 3, 1, {a.data(), 1, false}, {b.data(), 1, false}, 0, wide.data(), 1);
  CHECK(wide.host() == std::vector<float>{1, 2, 3});
}

TEST_CASE("cuda gemm: batches, also with a shared operand and with an inner size of 0") {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const bool share : {false, true}) {
        check_batched<float>(7, 5, 4, 6, ta, tb, share, 0);
        check_batched<double>(3, 2, 9, 5, ta, tb, share, 1);
      }
  check_batched<float>(5, 3, 4, 0, false, false, false, 0);
  check_batched<float>(5, 3, 4, 0, false, false, false, 0.5F);
  check_batched<double>(0, 3, 4, 2, false, false, false, 0);
  check_batched<double>(4, 0, 4, 2, false, false, false, 0);
}

TEST_CASE("cuda gemm: more than 65,536 batches (H02)") { check_batched<float>(70'000, 1, 2, 1, false, true, false, 0); }

TEST_CASE("cuda gemm: TF32 on request only") {
  // Exact in f32, not with TF32's 10 bits of mantissa; the emulator knows one precision only.
  const auto& kernels = CudaBackend::gemm<float>();
  const DeviceArray<float> a(std::vector<float>(32 * 32, 1 + 0x1p-18F)), b(std::vector<float>(32 * 32, 1)), c(32 * 32);
  const auto product = [&] {
    kernels.gemm(32, 32, 32, {a.data(), 32, false}, {b.data(), 32, false}, 0, c.data(), 32);
    return c.host();
  };
  const std::vector<float> exact(32 * 32, 32 + 0x1p-13F), coarse(32 * 32, 32);
  CHECK(first_difference(product(), exact, 0) == "");
  CudaBackend::allow_tf32(true);
  const auto allowed = product();
  CHECK((allowed == exact || allowed == coarse));
  CudaBackend::allow_tf32(false);
  CHECK(first_difference(product(), exact, 0) == "");
}

TEST_CASE("cuda gemm: what cuBLAS refuses is an error with the sizes in it") {
  const auto& kernels = CudaBackend::gemm<float>();
  const DeviceArray<float> a(std::vector<float>(6, 1)), b(std::vector<float>(6, 1)), c(4);
  CHECK_THROWS_WITH(kernels.gemm(2, 2, 3, {a.data(), 2, false}, {b.data(), 2, false}, 0, c.data(), 2),
                    contains("[gemm] cuBLAS: ") && contains("in cublasSgemm; m 2, n 2, k 3, lda 2, ldb 2, ldc 2"));
}

TEST_CASE("cuda gemm: two runs have the same bits (H08)") {
  const auto a = normal_vector<float>(40 * 300, 1), b = normal_vector<float>(30 * 300, 2);
  const DeviceArray<float> device_a(a), device_b(b), one(40 * 30), two(40 * 30);
  for (float* c : {one.data(), two.data()})
    CudaBackend::gemm<float>().gemm(40, 30, 300, {device_a.data(), 300, false}, {device_b.data(), 300, true}, 0, c, 30);
  CHECK(one.host() == two.host());
  CHECK(largest_magnitude(one.host()) > 1);
}
