// Indices out of range that a kernel finds (C08's kind): the first is kept, and the host throws it once.

#include "kernels/cuda/fault.h"

#include "kernels/kernels.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;
using kernels::cuda::throw_if_fault;

namespace {

/// Rows of the table 10, 11, 12, 13, 14.
std::vector<int64_t> look_up(const std::vector<int64_t>& index) {
  const DeviceArray<int64_t> table(std::vector<int64_t>{10, 11, 12, 13, 14}), on_device(index), rows(index.size());
  CudaBackend::move().gather_rows(static_cast<int64_t>(index.size()), 5, 8, table.data(), on_device.data(), rows.data());
  return rows.host();
}

}  // namespace

TEST_CASE("cuda fault: none") {
  CHECK(look_up({0, 1, 4}) == std::vector<int64_t>{10, 11, 14});
  CHECK_NOTHROW(throw_if_fault());
}

TEST_CASE("cuda fault: thrown once, then forgotten; the row is zero") {
  CHECK(look_up({0, 4, -1, 2, 3}) == std::vector<int64_t>{10, 14, 0, 12, 13});
  CHECK_THROWS_WITH(throw_if_fault(), "[gather_rows] index: -1 at position 2 is out of range 0 to 4 (found on the GPU)");
  CHECK_NOTHROW(throw_if_fault());
  look_up({5});
  CHECK_THROWS_AS(throw_if_fault(), Error);
}

TEST_CASE("cuda fault: an op's names for it count, the innermost's") {
  {
    const FaultName outer("embedding", "ids");
    const FaultName name("index_select", "rows");
    look_up({int64_t{1} << 40});
  }
  CHECK_THROWS_WITH(throw_if_fault(), "[index_select] rows: 1099511627776 at position 0 is out of range 0 to 4 (found on the GPU)");
  {
    const FaultName outer("embedding", "ids");
    { const FaultName name("index_select", "rows"); }
    look_up({7});
  }
  CHECK_THROWS_WITH(throw_if_fault(), "[embedding] ids: 7 at position 0 is out of range 0 to 4 (found on the GPU)");
}

TEST_CASE("cuda fault: the first of several launches is kept, and one of several threads") {
  look_up({9});
  look_up({-3, -3});
  CHECK_THROWS_WITH(throw_if_fault(), "[gather_rows] index: 9 at position 0 is out of range 0 to 4 (found on the GPU)");
  look_up(std::vector<int64_t>(100, 8));
  CHECK_THROWS_WITH(throw_if_fault(), contains("[gather_rows] index: 8 at position") && contains("0 to 4"));
  CHECK_NOTHROW(throw_if_fault());
}

TEST_CASE("cuda fault: a copy to the host throws it") {
  const DeviceArray<int64_t> table(std::vector<int64_t>{10, 11}), index(std::vector<int64_t>{1, 2}), rows(2);
  std::vector<int64_t> host(2);
  CudaBackend::move().gather_rows(2, 2, 8, table.data(), index.data(), rows.data());
  CHECK_THROWS_WITH(CudaBackend::move().copy(16, rows.data(), host.data()),
                    "[gather_rows] index: 2 at position 1 is out of range 0 to 1 (found on the GPU)");
  CHECK_NOTHROW(CudaBackend::move().copy(16, rows.data(), host.data()));
  CHECK(host == std::vector<int64_t>{11, 0});
}
