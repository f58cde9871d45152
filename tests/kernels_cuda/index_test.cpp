// Gathering and adding along an index on CUDA, against the CPU's kernels.

#include "kernels/cuda/fault.h"
#include "kernels/kernels.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

// A target's terms are added in their order, but in chunks: as many roundings as on the CPU, others. Sums here are of order 10 and have up to a few
// thousand terms of order 1.
template <class T>
constexpr double sum_tolerance = sizeof(T) == 4 ? 2e-5 : 1e-13;

std::vector<int64_t> random_index(int64_t n, int64_t limit, uint64_t seed) {
  Rng rng = Rng(seed).stream("index");
  std::vector<int64_t> index(static_cast<size_t>(n));
  for (int64_t& i : index) i = std::min(static_cast<int64_t>(rng.uniform() * static_cast<double>(limit)), limit - 1);
  return index;
}

template <class T>
std::vector<T> sum_rows(int64_t width, const std::vector<T>& source, const std::vector<int64_t>& index, int64_t rows, size_t shift = 0) {
  const DeviceArray<T> dev_source(source, shift), target(static_cast<size_t>(rows * width), shift);
  const DeviceArray<int64_t> dev_index(index);
  CudaBackend::index<T>().scatter_add_rows(static_cast<int64_t>(index.size()), width, dev_source.data(), dev_index.data(), rows, target.data());
  return target.host();
}

template <class T>
void check_sum_rows(int64_t width, const std::vector<int64_t>& index, int64_t rows, size_t shift = 0) {
  const auto count = static_cast<int64_t>(index.size());
  const auto source = normal_vector<T>(count * width, 1);
  std::vector<T> expected(static_cast<size_t>(rows * width));
  CpuBackend::index<T>().scatter_add_rows(count, width, source.data(), index.data(), rows, expected.data());
  INFO(count << " rows of " << width << " into " << rows << ", shift " << shift);
  REQUIRE(first_difference(sum_rows(width, source, index, rows, shift), expected, sum_tolerance<T>) == "");
}

template <class T>
void check_along(int64_t outer, int64_t axis, int64_t count, int64_t inner, uint64_t seed = 2) {
  INFO("[" << outer << ", " << axis << " from " << count << ", " << inner << "] of " << sizeof(T) << " bytes");
  const auto index = random_index(outer * count * inner, axis, seed);
  const DeviceArray<int64_t> dev_index(index);
  std::vector<T> x(static_cast<size_t>(outer * axis * inner)), y(index.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(i * 7 % 251);
  const DeviceArray<T> dev_x(x), dev_y(y.size());
  CpuBackend::index<T>().gather(outer, axis, count, inner, x.data(), index.data(), y.data());
  CudaBackend::index<T>().gather(outer, axis, count, inner, dev_x.data(), dev_index.data(), dev_y.data());
  REQUIRE(dev_y.host() == y);
  if constexpr (std::is_floating_point_v<T>) {
    const auto dy = normal_vector<T>(outer * count * inner, 3);
    const DeviceArray<T> dev_dy(dy), dev_dx(x.size());
    CpuBackend::index<T>().scatter_add(outer, axis, count, inner, dy.data(), index.data(), x.data());
    CudaBackend::index<T>().scatter_add(outer, axis, count, inner, dev_dy.data(), dev_index.data(), dev_dx.data());
    REQUIRE(first_difference(dev_dx.host(), x, sum_tolerance<T>) == "");
  }
}

}  // namespace

TEST_CASE("cuda index: rows add up at their index, all shapes (E07)") {
  for (const size_t shift : {0, 1}) {
    for (const int64_t width : {1, 3, 8, 130}) {
      check_sum_rows<float>(width, random_index(50, 7, 1), 7, shift);
      check_sum_rows<double>(width, random_index(50, 7, 1), 7, shift);
    }
  }
  check_sum_rows<float>(5, random_index(3000, 10, 2), 10);           // more than a tile, long runs
  check_sum_rows<float>(4, random_index(2500, 5000, 3), 5000);       // two passes, many rows without a term
  check_sum_rows<double>(1, random_index(2100, 70'000, 4), 70'000);  // three
  check_sum_rows<float>(600, random_index(70, 3, 5), 3);             // more columns than a block has threads
  check_sum_rows<float>(6, random_index(100, 1, 6), 1);
  check_sum_rows<float>(6, {}, 4);
  check_sum_rows<float>(0, {1, 0}, 4);
  check_sum_rows<float>(6, {}, 0);
}

TEST_CASE("cuda index: runs that end where chunks do") {
  for (const int64_t run : {31, 32, 33, 64, 96, 100}) {  // chunks of 32
    std::vector<int64_t> index;
    for (int64_t i = 0; i < 300; ++i) index.push_back(i / run);
    check_sum_rows<float>(3, index, 12);
    check_sum_rows<float>(4, index, 12);
  }
}

TEST_CASE("cuda index: one index 10,000 times, exactly and always the same (H08)") {
  const std::vector<int64_t> index(10'000, 1);
  CHECK(sum_rows(1, std::vector<float>(10'000, 1.0F), index, 3) == std::vector<float>{0, 10'000, 0});
  const auto source = normal_vector<float>(10'000, 7, 0, 0.1);
  const auto first = sum_rows(1, source, index, 3);
  CHECK(first[1] != 0);
  for (int run = 1; run < 20; ++run) REQUIRE(sum_rows(1, source, index, 3) == first);
}

TEST_CASE("cuda index: along an axis and back, line by line and sorted") {
  for (const auto& [outer, axis, count, inner] : std::vector<std::array<int64_t, 4>>{
           {3, 5, 4, 6}, {1, 1, 1, 1}, {40, 9, 1, 1}, {2, 30, 100, 3}, {1, 300, 2500, 1}, {5, 7, 0, 3}, {0, 7, 2, 3}, {2, 3, 40, 0}}) {
    check_along<float>(outer, axis, count, inner);
    check_along<double>(outer, axis, count, inner);
    check_along<int64_t>(outer, axis, count, inner);
    check_along<uint8_t>(outer, axis, count, inner);
  }
  check_along<float>(66'000, 2, 1, 1);  // more lines than ... H02
  check_along<float>(1, 3, 33, 66'000 / 33);
}

TEST_CASE("cuda index: what is out of range is left out and reported") {
  const auto dropped = sum_rows<float>(2, {1, 2, 3, 4, 5, 6, 7, 8}, {1, -1, 2, 1}, 2);
  CHECK(dropped == std::vector<float>{0, 0, 8, 10});
  CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), contains("[scatter_add_rows] index: ") && contains("is out of range 0 to 1 (found on the GPU)"));
  CHECK_NOTHROW(kernels::cuda::throw_if_fault());
  CHECK(sum_rows<float>(1, {1, 2}, {0, 0}, 0).empty());
  CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), contains("[scatter_add_rows] index: 0 at position"));

  const DeviceArray<int64_t> index(std::vector<int64_t>{0, 3, 1});
  const DeviceArray<float> x(std::vector<float>{5, 6, 7}), y(3), dx(3);
  CudaBackend::index<float>().gather(1, 3, 3, 1, x.data(), index.data(), y.data());
  CHECK(y.host() == std::vector<float>{5, 0, 6});
  CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), "[gather] index: 3 at position 1 is out of range 0 to 2 (found on the GPU)");
  CudaBackend::index<float>().scatter_add(1, 3, 3, 1, x.data(), index.data(), dx.data());
  CHECK(dx.host() == std::vector<float>{5, 7, 0});
  CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), "[scatter_add] index: 3 at position 1 is out of range 0 to 2 (found on the GPU)");
  std::vector<int64_t> many(40, 2);
  many[17] = -5;
  const DeviceArray<int64_t> sorted(many);
  const DeviceArray<float> ones(std::vector<float>(40, 1));
  CudaBackend::index<float>().scatter_add(1, 3, 40, 1, ones.data(), sorted.data(), dx.data());
  CHECK(dx.host() == std::vector<float>{0, 0, 39});
  CHECK_THROWS_WITH(kernels::cuda::throw_if_fault(), "[scatter_add] index: -5 at position 17 is out of range 0 to 2 (found on the GPU)");
}
