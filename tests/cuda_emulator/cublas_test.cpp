// Matrix products of the emulated cuBLAS: values by hand, what it must not read, and what it must refuse.

#include <cublas_v2.h>

#include <cmath>

#include "cuda_emulator/test_support.h"

using namespace lamina::test;

namespace {

class Handle {
 public:
  Handle() { cublasCreate(&handle_); }
  ~Handle() { cublasDestroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator cublasHandle_t() const { return handle_; }

 private:
  cublasHandle_t handle_ = nullptr;
};

std::vector<float> counting(int n) {
  std::vector<float> values;
  for (int i = 1; i <= n; ++i) values.push_back(static_cast<float>(i));
  return values;
}

}  // namespace

TEST_CASE("emulated cublas: row-major products through column-major eyes (H03)") {
  const Handle handle;
  const DeviceArray<float> a(counting(6)), b(counting(12)), c(8);  // [2, 3] and [3, 4], row-major
  const float one = 1, zero = 0, two = 2;
  const std::vector<float> product{38, 44, 50, 56, 83, 98, 113, 128};
  // C^T = B^T A^T: what cuBLAS sees of a row-major matrix is its transpose.
  REQUIRE(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 2, 3, &one, b.data(), 4, a.data(), 3, &zero, c.data(), 4) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host() == product);
  const DeviceArray<float> a_t(std::vector<float>{1, 4, 2, 5, 3, 6}), b_t(std::vector<float>{1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12});
  REQUIRE(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_T, 4, 2, 3, &one, b_t.data(), 3, a_t.data(), 2, &two, c.data(), 4) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host() == std::vector<float>{114, 132, 150, 168, 249, 294, 339, 384});
}

TEST_CASE("emulated cublas: batches with strides") {
  const Handle handle;
  const std::vector<double> x{1, 2, 3, 4, 5, 6, 7, 8};
  const DeviceArray<double> a(x), c(8);
  const double one = 1, zero = 0;
  REQUIRE(cublasDgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a.data(), 2, 4, a.data(), 2, 0, &zero, c.data(), 2, 4, 2) ==
          CUBLAS_STATUS_SUCCESS);
  CHECK(c.host() == std::vector<double>{7, 10, 15, 22, 19, 22, 43, 50});
}

TEST_CASE("emulated cublas: odd sizes, both ways round, against sums in double") {
  const Handle handle;
  const int m = 13, n = 11, k = 37, lda = 41, ldb = 43, ldc = 17;
  const auto value = [](int i) { return static_cast<float>((i * 7919) % 1000 - 500) / 256; };
  std::vector<float> a(static_cast<size_t>(lda * lda)), b(static_cast<size_t>(ldb * ldb)), c(static_cast<size_t>(ldc * n));
  for (size_t i = 0; i < a.size(); ++i) a[i] = value(static_cast<int>(i));
  for (size_t i = 0; i < b.size(); ++i) b[i] = value(static_cast<int>(i) + 333);
  for (size_t i = 0; i < c.size(); ++i) c[i] = value(static_cast<int>(i) + 777);
  const DeviceArray<float> a_device(a), b_device(b);
  const float alpha = 1.5F, beta = -0.5F;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      const DeviceArray<float> c_device(c);
      REQUIRE(cublasSgemm_64(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, &alpha, a_device.data(), lda,
                             b_device.data(), ldb, &beta, c_device.data(), ldc) == CUBLAS_STATUS_SUCCESS);
      const auto have = c_device.host();
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < ldc; ++i) {
          const auto at = [](const std::vector<float>& x, int row, int column, int ld) { return double{x[static_cast<size_t>(column * ld + row)]}; };
          double sum = 0;
          for (int l = 0; l < k; ++l) sum += (ta ? at(a, l, i, lda) : at(a, i, l, lda)) * (tb ? at(b, j, l, ldb) : at(b, l, j, ldb));
          const double expected = i < m ? double{alpha} * sum + double{beta} * at(c, i, j, ldc) : at(c, i, j, ldc);  // below m nothing changes
          REQUIRE(at(have, i, j, ldc) == Approx(expected).epsilon(1e-5).margin(1e-4));
        }
    }
}

TEST_CASE("emulated cublas: TF32 only where it was asked for") {
  const Handle handle;
  const float fine = 1 + 0x1p-12F, coarse = 1 + 0x1p-10F, one = 1, zero = 0;
  const DeviceArray<float> a(std::vector<float>{fine, 0, 0, coarse}), b(std::vector<float>{1, 0, 0, 1}), c(4);
  const auto product = [&] {
    REQUIRE(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a.data(), 2, b.data(), 2, &zero, c.data(), 2) == CUBLAS_STATUS_SUCCESS);
    return c.host();
  };
  CHECK(product() == std::vector<float>{fine, 0, 0, coarse});
  REQUIRE(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH) == CUBLAS_STATUS_SUCCESS);
  CHECK(product() == std::vector<float>{1, 0, 0, coarse});
}

TEST_CASE("emulated cublas: beta 0 does not read C, an inner size of 0 gives beta C (I01, I03)") {
  const Handle handle;
  const DeviceArray<float> a(counting(4)), c(std::vector<float>(4, NAN)), kept(std::vector<float>(6, 7));
  const float one = 1, zero = 0;
  REQUIRE(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a.data(), 2, a.data(), 2, &zero, c.data(), 2) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host() == std::vector<float>{7, 10, 15, 22});
  REQUIRE(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 0, &one, nullptr, 2, nullptr, 1, &one, kept.data(), 2) == CUBLAS_STATUS_SUCCESS);
  CHECK(kept.host() == std::vector<float>(6, 7));
  REQUIRE(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 0, &one, nullptr, 2, nullptr, 1, &zero, kept.data(), 2) == CUBLAS_STATUS_SUCCESS);
  CHECK(kept.host() == std::vector<float>(6, 0));
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 0, 3, 2, &one, nullptr, 1, nullptr, 2, &zero, nullptr, 1) == CUBLAS_STATUS_SUCCESS);
}

TEST_CASE("emulated cublas: wrong leading dimensions, bounds, unwritten operands") {
  const Handle handle;
  const DeviceArray<float> a(counting(6)), empty(4), c(6);
  const float one = 1, zero = 0;
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 3, 2, 2, &one, a.data(), 2, a.data(), 2, &zero, c.data(), 3) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasSgemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.data(), 1, a.data(), 1, &zero, c.data(), 1) == CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK_THAT(error_of([&] { cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 3, 2, 3, &one, a.data(), 3, a.data(), 3, &zero, c.data(), 3); }),
             contains("gemm: A: 36 bytes from byte 0 of device memory"));
  CHECK_THAT(error_of([&] { cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a.data(), 2, empty.data(), 2, &zero, c.data(), 2); }),
             contains("gemm: B: byte 0 of device memory") && contains("never written"));
}

TEST_CASE("emulated cublas: 64-bit sizes, a workspace of the caller's") {
  const Handle handle;
  const DeviceArray<float> a(counting(4)), c(4), workspace(128), shifted(128, 1);
  const float one = 1, zero = 0;
  CHECK(cublasSetWorkspace(handle, workspace.data(), 512) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasSetWorkspace(handle, shifted.data(), 512) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasSetWorkspace(nullptr, nullptr, 0) == CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK_THAT(error_of([&] { cublasSetWorkspace(handle, workspace.data(), 1024); }), contains("cublasSetWorkspace: 1024 bytes from byte 0"));
  REQUIRE(cublasSgemm_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a.data(), 2, a.data(), 2, &zero, c.data(), 2) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host() == std::vector<float>{7, 10, 15, 22});
}
