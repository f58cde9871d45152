// The row normaliser on CUDA against the CPU's, which its own tests hold against the definition.

#include "kernels/cuda/norm.h"

#include "kernels/norm_support.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;

namespace {

template <class T>
struct RowResult {
  std::vector<T> y, mean, rstd, dx, dgain, dbias;
};

template <class T>
struct RowInputs {
  RowNorm spec;
  std::vector<T> x, gain, bias, dy;
};

template <class T>
RowInputs<T> inputs_of(const RowNorm& spec, double mean = 0, double sd = 1) {
  const auto seed = static_cast<uint64_t>(spec.rows * 100'000 + spec.width);
  const int64_t n = spec.rows * spec.width;
  return {spec, normal_vector<T>(n, seed, mean, sd), normal_vector<T>(spec.affine_count, seed + 1), normal_vector<T>(spec.affine_count, seed + 2),
          normal_vector<T>(n, seed + 3)};
}

template <class T>
RowResult<T> on_cpu(const RowInputs<T>& in) {
  const size_t n = in.x.size(), rows = index(in.spec.rows), count = index(in.spec.affine_count);
  RowResult<T> r{std::vector<T>(n),    std::vector<T>(in.spec.centre ? 2 * rows : 0), std::vector<T>(rows), std::vector<T>(n), std::vector<T>(count),
                 std::vector<T>(count)};
  const auto& cpu = kernels_of<T>();
  cpu.row_forward(in.spec, in.x.data(), pointer(in.gain), pointer(in.bias), r.y.data(), r.mean.data(), r.rstd.data());
  cpu.row_backward(in.spec, in.x.data(), pointer(in.gain), r.mean.data(), r.rstd.data(), in.dy.data(), r.dx.data(), r.dgain.data(), r.dbias.data());
  return r;
}

template <class T>
RowResult<T> on_device(const RowInputs<T>& in, size_t shift = 0) {
  const size_t n = in.x.size(), rows = index(in.spec.rows), count = index(in.spec.affine_count);
  const DeviceArray<T> x(in.x, shift), gain(in.gain), bias(in.bias), dy(in.dy), y(n), mean(in.spec.centre ? 2 * rows : 0), rstd(rows), dx(n),
      dgain(count), dbias(count);
  kernels::cuda::row_norm_forward(in.spec, x.data(), gain.data(), bias.data(), y.data(), mean.data(), rstd.data());
  kernels::cuda::row_norm_backward(in.spec, x.data(), gain.data(), mean.data(), rstd.data(), dy.data(), dx.data(), dgain.data(), dbias.data());
  return {y.host(), mean.host(), rstd.host(), dx.host(), dgain.host(), dbias.host()};
}

template <class T>
RowInputs<double> as_double(const RowInputs<T>& in) {
  return {in.spec, test::as_double(in.x), test::as_double(in.gain), test::as_double(in.bias), test::as_double(in.dy)};
}

/// Requires that the device's results in T meet the CPU's in double.
template <class T>
void check_against_cpu(const RowInputs<T>& in, double forward, double backward, size_t shift = 0) {
  const RowResult<T> have = on_device(in, shift);
  const RowResult<double> expected = on_cpu(as_double(in));
  REQUIRE(first_difference(have.y, expected.y, forward) == "");
  REQUIRE(first_difference(means_of(have.mean), means_of(expected.mean), forward) == "");
  REQUIRE(first_difference(have.rstd, expected.rstd, forward) == "");
  REQUIRE(first_difference(have.dx, expected.dx, backward) == "");
  REQUIRE(first_difference(have.dgain, expected.dgain, backward) == "");
  REQUIRE(first_difference(have.dbias, expected.dbias, backward) == "");
  if (in.spec.width > 2) REQUIRE(largest_magnitude(have.dx) > 1e-3);
}

constexpr double f64_backward = 1e-11;  // sums of up to some thousand terms

RowNorm layer(int64_t rows, int64_t width) { return {.rows = rows, .width = width, .measured = width, .affine_count = width}; }

RowNorm grouped(int64_t batch, int64_t channels, int64_t space, int64_t groups) {
  const int64_t width = channels / groups * space;
  return {.rows = batch * groups, .width = width, .measured = width, .affine_count = channels, .affine_inner = space};
}

// One for each way that gain and bias can follow the elements.
std::vector<RowNorm> all_kinds() {
  return {{.rows = 3, .width = 9, .measured = 9},
          {.rows = 3, .width = 19, .centre = false, .measured = 19, .affine_count = 19},
          {.rows = 5, .width = 20, .centre = false, .measured = 6, .affine_count = 20},
          {.rows = 2, .width = 1100, .measured = 601, .affine_count = 1100},
          grouped(2, 6, 5, 3),
          grouped(3, 4, 7, 4),
          grouped(2, 3, 4, 1),
          grouped(3, 8, 1, 2),
          grouped(2, 8, 300, 4),
          grouped(2, 4, 4100, 2),
          {.rows = 4, .width = 6, .centre = false, .measured = 2, .affine_count = 2, .affine_inner = 3},
          {.rows = 6, .width = 5, .measured = 5, .affine_count = 2, .affine_inner = 3},
          {.rows = 6, .width = 5, .measured = 5, .affine_count = 3},
          {.rows = 5, .width = 5, .measured = 5, .affine_count = 3},  // the last turn through the parameters is cut short, here and
          {.rows = 5, .width = 5, .measured = 5, .affine_count = 2, .affine_inner = 3},
          {.rows = 6, .width = 2, .measured = 2, .affine_count = 3, .affine_inner = 4},
          {.rows = 40, .width = 8, .centre = false, .measured = 8, .affine_count = 40, .affine_inner = 8, .eps = 0}};
}

}  // namespace

TEST_CASE("cuda row norm: layer norm of all widths: warp, block, beyond the registers, beyond shared memory (H07)") {
  for (const int64_t width : {1, 2, 3, 4, 7, 31, 33, 64, 127, 128, 256, 257, 1000, 1023, 1024, 1025, 4096, 4100}) {
    for (const int64_t rows : {1, 3, 33}) {
      if (rows * width > 40'000) continue;
      INFO(rows << " rows of " << width);
      check_against_cpu(inputs_of<float>(layer(rows, width)), f32_forward, f32_backward);
      check_against_cpu(inputs_of<double>(layer(rows, width)), f64_forward, f64_backward);
    }
  }
  for (const int64_t width : {8192, 8193, 12288, 12289, 16384, 30'000}) {
    INFO("width " << width);
    check_against_cpu(inputs_of<float>(layer(2, width)), f32_forward, f32_backward);
  }
  check_against_cpu(inputs_of<double>(layer(2, 16'000)), f64_forward, f64_backward);
}

TEST_CASE("cuda row norm: blocks share rows that are few and very long, however gain and bias follow the elements") {
  const RowNorm plain{.rows = 2, .width = 50'001, .measured = 50'001}, rms{.rows = 2, .width = 40'000, .centre = false, .measured = 40'000};
  for (const RowNorm& spec : {layer(1, 32'768), layer(3, 40'000), layer(1, 33'333), grouped(1, 6, 12'000, 2), grouped(1, 3, 33'001, 3), plain, rms}) {
    INFO("rows " << spec.rows << ", width " << spec.width << ", count " << spec.affine_count << ", inner " << spec.affine_inner);
    check_against_cpu(inputs_of<float>(spec), f32_forward, f32_backward);
  }
  check_against_cpu(inputs_of<double>(layer(2, 33'000)), f64_forward, f64_backward);
}

TEST_CASE("cuda row norm: every kind of affine parameter") {
  for (const RowNorm& spec : all_kinds()) {
    INFO("rows " << spec.rows << ", width " << spec.width << ", count " << spec.affine_count << ", inner " << spec.affine_inner);
    check_against_cpu(inputs_of<float>(spec), f32_forward, f32_backward);
    check_against_cpu(inputs_of<double>(spec), f64_forward, f64_backward);
  }
}

TEST_CASE("cuda row norm: a large offset loses nothing, however the row is held") {
  for (const int64_t width : {64, 1000, 3000, 9000, 40'000}) {
    INFO("width " << width);
    check_against_cpu(inputs_of<float>(layer(3, width), 1e4, 0.1), f32_forward, f32_backward);
  }
}

TEST_CASE("cuda row norm: rows that are not aligned to 16 bytes") {
  for (const int64_t width : {8, 1000, 1600, 40'000}) {
    INFO("width " << width);
    check_against_cpu(inputs_of<float>(layer(5, width)), f32_forward, f32_backward, 1);
    check_against_cpu(inputs_of<double>(layer(5, width)), f64_forward, f64_backward, 1);
  }
}

TEST_CASE("cuda row norm: more rows than one round of blocks, more than 65,535 (H02)") {
  check_against_cpu(inputs_of<float>(layer(5000, 5)), f32_forward, f32_backward);
  check_against_cpu(inputs_of<float>(layer(300, 1040)), f32_forward, f32_backward);  // blocks that take a second row
  RowNorm groups = grouped(66'000, 1, 2, 1);
  groups.affine_count = 0;
  check_against_cpu(inputs_of<float>(groups), f32_forward, f32_backward);
}

TEST_CASE("cuda row norm: gain, bias and each of dx, dgain, dbias may be missing") {
  for (const RowNorm& spec : {layer(37, 50), layer(2, 9000), layer(1, 33'000), grouped(5, 6, 7, 3)}) {
    const auto in = inputs_of<float>(spec);
    const auto all = on_device(in);
    const DeviceArray<float> x(in.x), gain(in.gain), dy(in.dy), mean(all.mean), rstd(all.rstd), dx(in.x.size()), dgain(in.gain.size()),
        dbias(in.gain.size());
    const auto backward = [&](float* to_x, float* to_gain, float* to_bias) {
      kernels::cuda::row_norm_backward(spec, x.data(), gain.data(), mean.data(), rstd.data(), dy.data(), to_x, to_gain, to_bias);
    };
    backward(dx.data(), nullptr, nullptr);
    backward(nullptr, dgain.data(), nullptr);
    backward(nullptr, nullptr, dbias.data());
    CHECK(first_difference(dx.host(), all.dx, 0) == "");
    CHECK(first_difference(dgain.host(), all.dgain, 0) == "");
    CHECK(first_difference(dbias.host(), all.dbias, 0) == "");
    auto without = in;
    without.gain.clear();
    without.bias.clear();
    const auto have = on_device(without);
    const auto expected = on_cpu(as_double(without));
    CHECK(first_difference(have.y, expected.y, f32_forward) == "");
    CHECK(first_difference(have.dx, expected.dx, f32_backward) == "");
    CHECK(first_difference(have.dgain, expected.dgain, f32_backward) == "");
  }
}

TEST_CASE("cuda row norm: worked values (A01, A05, A06, A11)") {
  const auto y_of = [](RowNorm spec, std::vector<float> x) { return on_device<float>({spec, x, {}, {}, x}).y; };
  const auto plain = [](int64_t rows, int64_t width) { return RowNorm{.rows = rows, .width = width, .measured = width}; };
  const auto rms = [](int64_t width, double eps) { return RowNorm{.rows = 1, .width = width, .centre = false, .measured = width, .eps = eps}; };
  CHECK(first_difference(y_of(plain(1, 4), {40000, 40001, 40002, 40003}), std::vector<double>{-1.3416354, -0.4472118, 0.4472118, 1.3416354},
                         six_digits) == "");
  CHECK(first_difference(y_of(plain(1, 4), {1, 0, 0, 0}), std::vector<double>{1.7320046, -0.5773348, -0.5773348, -0.5773348}, six_digits) == "");
  CHECK(first_difference(y_of(plain(1, 2), {1e-3F, -1e-3F}), std::vector<double>{0.301511, -0.301511}, six_digits) == "");
  CHECK(first_difference(y_of(rms(4, 1e-6), {1e-3F, 0, 0, 0}), std::vector<double>{0.894427, 0, 0, 0}, six_digits) == "");
  CHECK(first_difference(y_of(rms(2, 1e-5), {3e19F, 4e19F}), std::vector<double>{0.848528, 1.131371}, six_digits) == "");
  CHECK(first_difference(y_of(plain(1, 2), {-3e19F, 3e19F}), std::vector<double>{-1, 1}, six_digits) == "");
  CHECK(first_difference(y_of(rms(2, 0), {3e-30F, 4e-30F}), std::vector<double>{0.848528, 1.131371}, six_digits) == "");
  const auto zeros = on_device<float>({rms(4, 1e-6), {0, 0, 0, 0}, {}, {}, {1, 0, 0, 0}});
  CHECK(first_difference(zeros.y, std::vector<double>{0, 0, 0, 0}, 0) == "");
  CHECK(first_difference(zeros.dx, std::vector<double>{1000, 0, 0, 0}, six_digits) == "");
  const auto spoilt = on_device<float>({plain(2, 3), {1, 2, INFINITY, 1, 2, 3}, {}, {}, {1, 2, 4, 1, 2, 4}});
  CHECK(std::isnan(spoilt.y[0]));
  CHECK(first_difference(std::vector<float>(spoilt.y.begin() + 3, spoilt.y.end()), std::vector<double>{-1.2247356, 0, 1.2247356}, six_digits) == "");
  // Squares that overflow, in a warp, in a block, beyond the registers, and in rows that blocks share.
  for (const int64_t width : {100, 2000, 9000, 40'000}) {
    auto in = inputs_of<float>(layer(2, width), 0, 1e19);
    INFO("width " << width);
    CHECK(first_difference(on_device(in).y, on_cpu(as_double(in)).y, f32_forward) == "");
  }
}

TEST_CASE("cuda row norm: constant rows give the bias, exactly") {
  for (const int64_t width : {100, 2000, 9000, 40'000}) {
    auto in = inputs_of<float>(layer(2, width));
    std::fill(in.x.begin(), in.x.end(), 12345.678F);
    const auto y = on_device(in).y;
    for (size_t i = 0; i < y.size(); ++i) REQUIRE(y[i] == in.bias[i % index(width)]);
  }
}

TEST_CASE("cuda row norm: two runs have the same bits (H08)") {
  for (const RowNorm& spec : {layer(300, 257), layer(7, 2000), layer(3, 9000), layer(3, 40'000), grouped(10, 64, 31, 8), grouped(30, 256, 1, 4)}) {
    const auto in = inputs_of<float>(spec, 3);
    const auto one = on_device(in), two = on_device(in);
    CHECK((one.y == two.y && one.dx == two.dx && one.dgain == two.dgain && one.dbias == two.dbias));
    CHECK(largest_magnitude(one.dgain) > 0);
  }
  auto many = inputs_of<float>(layer(1025, 3));
  std::fill(many.dy.begin(), many.dy.end(), 1.0F);
  CHECK(on_device(many).dbias == std::vector<float>(3, 1025));
}

TEST_CASE("cuda row norm: zero sizes (A12)") {
  const auto no_rows = on_device(inputs_of<float>(layer(0, 10)));
  CHECK(no_rows.dgain == std::vector<float>(10, 0));
  CHECK(no_rows.dbias == std::vector<float>(10, 0));
  CHECK(on_device(inputs_of<float>(grouped(0, 6, 5, 3))).dgain == std::vector<float>(6, 0));
  CHECK(on_device(inputs_of<float>(layer(3, 0))).rstd == std::vector<float>(3, 0));
}
