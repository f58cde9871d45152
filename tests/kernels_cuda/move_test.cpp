// Movers on CUDA against the CPU's: the same bytes.

#include <limits>

#include "kernels/kernels.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"
#include "kernels_cuda/spaces.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

const MoveKernels& cpu() { return CpuBackend::move(); }
const MoveKernels& cuda() { return CudaBackend::move(); }

template <class T>
constexpr DType dtype_of = std::is_same_v<T, float>     ? DType::f32
                           : std::is_same_v<T, double>  ? DType::f64
                           : std::is_same_v<T, int64_t> ? DType::i64
                                                        : DType::u8;

template <class T>
std::vector<T> counted(int64_t n) {
  std::vector<T> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<T>(i * 7 % 251);
  return v;
}

/// move(kernels, target) on both sides.
template <class T, class Move>
void check_same(int64_t n, size_t shift, Move&& move) {
  std::vector<T> expected(static_cast<size_t>(n));
  move(cpu(), expected.data());
  const DeviceArray<T> target(expected.size(), shift);
  move(cuda(), target.data());
  INFO(n << " elements of " << sizeof(T) << " bytes, shift " << shift);
  REQUIRE(first_difference(target.host(), expected, 0) == "");
}

template <class T>
void check_fill_and_iota(int64_t n) {
  for (const size_t shift : {0, 1}) {
    for (const double value : {0.0, -0.0, 2.75, -3.5, 300.0, 1e300, std::numeric_limits<double>::quiet_NaN()})
      check_same<T>(n, shift, [&](const MoveKernels& kernels, T* target) { kernels.fill(dtype_of<T>, n, value, target); });
    check_same<T>(n, shift, [&](const MoveKernels& kernels, T* target) { kernels.iota(dtype_of<T>, n, 3.3, 0.7, target); });
    check_same<T>(n, shift, [&](const MoveKernels& kernels, T* target) { kernels.iota(dtype_of<T>, n, 5, -2, target); });
  }
}

template <class To, class From>
void check_cast(const std::vector<From>& source, size_t shift) {
  const DeviceArray<From> on_device(source, shift);
  check_same<To>(static_cast<int64_t>(source.size()), shift, [&](const MoveKernels& kernels, To* target) {
    const void* from = &kernels == &cuda() ? static_cast<const void*>(on_device.data()) : source.data();
    kernels.cast(dtype_of<From>, dtype_of<To>, static_cast<int64_t>(source.size()), from, target);
  });
}
template <class From>
void check_casts(const std::vector<From>& source) {
  for (const size_t shift : {0, 1}) {
    check_cast<float>(source, shift);
    check_cast<double>(source, shift);
    check_cast<int64_t>(source, shift);
    check_cast<uint8_t>(source, shift);
  }
}

template <class T>
void check_strided(const Broadcast& space, size_t shift) {
  INFO(in_words(space));
  const auto source = counted<T>(extent(space, 0));
  const DeviceArray<T> on_device(source, shift);
  check_same<T>(space.numel, shift, [&](const MoveKernels& kernels, T* target) {
    kernels.strided_copy(sizeof(T), space, &kernels == &cuda() ? on_device.data() : source.data(), target);
  });
}

}  // namespace

TEST_CASE("cuda move: copies between host and device in all directions, at once visible (H04)") {
  for (const int64_t n : {0, 1, 1000, 300'000}) {
    auto source = counted<uint8_t>(n);
    const auto kept = source;
    const DeviceArray<uint8_t> first(source.size()), second(source.size());
    std::vector<uint8_t> back(source.size());
    cuda().copy(n, source.data(), first.data());
    std::fill(source.begin(), source.end(), uint8_t{255});  // the copy has taken what it needs
    cuda().copy(n, first.data(), second.data());
    cuda().copy(n, second.data(), back.data());
    CHECK((back == kept));
    cuda().copy(n, kept.data(), source.data());
    CHECK((source == kept));
  }
}

TEST_CASE("cuda move: fill and iota") {
  for (const int64_t n : {0, 1, 5, 1030}) {
    check_fill_and_iota<float>(n);
    check_fill_and_iota<double>(n);
    check_fill_and_iota<int64_t>(n);
    check_fill_and_iota<uint8_t>(n);
  }
  const DeviceArray<float> minus_zero(1);
  cuda().fill(DType::f32, 1, -0.0, minus_zero.data());
  CHECK(std::signbit(minus_zero.host()[0]));
}

TEST_CASE("cuda move: casts truncate, saturate and take NaN to 0") {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> values = normal_vector<double>(1031, 1, 0, 200);
  const double edges[] = {0,
                          -0.0,
                          0.99,
                          -0.99,
                          255,
                          255.5,
                          256,
                          -1,
                          infinity,
                          -infinity,
                          NAN,
                          1e300,
                          -1e300,
                          9223372036854775807.0,
                          -9223372036854775808.0,
                          9223372036854774784.0,
                          16777217,
                          1e-46};
  std::copy(std::begin(edges), std::end(edges), values.begin());
  check_casts(values);
  std::vector<float> floats(values.begin(), values.end());
  check_casts(floats);
  std::vector<int64_t> integers(77);
  for (size_t i = 0; i < integers.size(); ++i) integers[i] = static_cast<int64_t>(i) * 9 - 300;
  integers[0] = INT64_MAX;
  integers[1] = INT64_MIN;
  integers[2] = 16'777'217;
  check_casts(integers);
  check_casts(counted<uint8_t>(300));
  check_casts(std::vector<float>{});
}

TEST_CASE("cuda move: strided copies of every layout") {
  for (const Broadcast& space : all_spaces()) {
    for (const size_t shift : {0, 1}) {
      check_strided<uint8_t>(space, shift);
      check_strided<float>(space, shift);
      check_strided<double>(space, shift);
    }
  }
}

TEST_CASE("cuda move: transpositions, through tiles and not") {
  const std::vector<Broadcast> spaces{space_of({40, 70}, {{1, 40}}),
                                      space_of({64, 32}, {{1, 64}}),
                                      space_of({9, 8}, {{1, 9}}),
                                      space_of({7, 50}, {{1, 7}}),  // too thin for tiles
                                      space_of({50, 3}, {{1, 50}}),
                                      space_of({3, 33, 34}, {{33 * 34, 1, 33}}),          // matrices in a batch
                                      space_of({33, 3, 34}, {{1, 33 * 34, 33}}),          // the dense axis first
                                      space_of({2, 3, 10, 2, 9}, {{1620, 1, 6, 3, 60}}),  // a dense axis that is too short
                                      space_of({3, 20, 2, 17}, {{680, 1, 20, 40}}),
                                      space_of({2, 2, 2, 2, 20, 17}, {{0, 340, 680, 1360, 1, 20}})};
  for (const Broadcast& space : spaces) {
    check_strided<uint8_t>(space, 0);
    check_strided<float>(space, 1);
    check_strided<double>(space, 0);
  }
}

TEST_CASE("cuda move: more tiles than the second axis of a grid has blocks (H02)") {
  const auto source = counted<uint8_t>(66'000 * 64);
  const DeviceArray<uint8_t> on_device(source), target(source.size());
  const Broadcast space = space_of({66'000, 8, 8}, {{64, 1, 8}});
  std::vector<uint8_t> expected(source.size());
  cpu().strided_copy(1, space, source.data(), expected.data());
  cuda().strided_copy(1, space, on_device.data(), target.data());
  CHECK((target.host() == expected));
}

TEST_CASE("cuda move: copy_2d at all alignments") {
  for (const int64_t unit : {1, 4, 8, 16}) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{3, 5}, {1, 7}, {70, 33}, {0, 4}, {4, 0}}) {
      const int64_t from_pitch = (width + 2) * unit, to_pitch = (width + 3) * unit;
      const auto source = counted<uint8_t>(rows * from_pitch);
      const DeviceArray<uint8_t> on_device(source);
      auto expected = std::vector<uint8_t>(static_cast<size_t>(rows * to_pitch), 9);
      const DeviceArray<uint8_t> target(expected);
      cpu().copy_2d(rows, width * unit, source.data(), from_pitch, expected.data(), to_pitch);
      cuda().copy_2d(rows, width * unit, on_device.data(), from_pitch, target.data(), to_pitch);
      CHECK(target.host() == expected);
    }
  }
}

TEST_CASE("cuda move: gather_rows at all alignments") {
  for (const int64_t unit : {1, 4, 8, 16}) {
    for (const int64_t width : {1, 5, 96}) {
      for (const int64_t count : {0, 1, 40}) {
        const int64_t rows = 7, row = width * unit;
        const auto source = counted<uint8_t>(rows * row);
        std::vector<int64_t> index(static_cast<size_t>(count));
        for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i * 3 % 7);
        const DeviceArray<uint8_t> on_device(source);
        const DeviceArray<int64_t> dev_index(index);
        check_same<uint8_t>(count * row, 0, [&](const MoveKernels& kernels, uint8_t* target) {
          const bool device = &kernels == &cuda();
          kernels.gather_rows(count, rows, row, device ? on_device.data() : source.data(), device ? dev_index.data() : index.data(), target);
        });
      }
    }
  }
}
