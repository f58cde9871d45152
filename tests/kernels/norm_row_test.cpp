// The row normaliser against plain two-pass loops in double.

#include <lamina/core/memory.h>

#include "kernels/norm_support.h"

using namespace lamina;
using namespace lamina::test;

namespace {

struct Normalised {
  std::vector<double> y, mean, rstd;
};

// Definition of the row normaliser.
Normalised row_reference(const RowNorm& s, const std::vector<double>& x, const std::vector<double>& gain, const std::vector<double>& bias) {
  Normalised r{std::vector<double>(x.size()), std::vector<double>(index(s.rows)), std::vector<double>(index(s.rows))};
  for (int64_t row = 0; row < s.rows; ++row) {
    const double* v = x.data() + row * s.width;
    double mean = 0, square = 0;
    for (int64_t i = 0; i < s.measured && s.centre; ++i) mean += v[i] / static_cast<double>(s.measured);
    for (int64_t i = 0; i < s.measured; ++i) square += (v[i] - mean) * (v[i] - mean) / static_cast<double>(s.measured);
    r.mean[index(row)] = mean;
    r.rstd[index(row)] = 1 / std::sqrt(square + s.eps);
    for (int64_t i = 0; i < s.width; ++i) {
      const int64_t at = row * s.width + i, a = s.affine_count ? at / s.affine_inner % s.affine_count : 0;
      r.y[index(at)] = (v[i] - mean) * r.rstd[index(row)] * (gain.empty() ? 1 : gain[index(a)]) + (bias.empty() ? 0 : bias[index(a)]);
    }
  }
  return r;
}

template <class T>
struct RowResult {
  std::vector<T> y, mean, rstd, dx, dgain, dbias;
};

template <class T>
RowResult<T> run_rows(const RowNorm& s, const std::vector<T>& x, const std::vector<T>& gain, const std::vector<T>& bias, const std::vector<T>& dy) {
  const size_t n = x.size(), rows = index(s.rows), count = index(s.affine_count);
  const T junk = T(77);  // outputs are overwritten, whatever they held
  RowResult<T> r{std::vector<T>(n, junk), std::vector<T>(2 * rows, junk), std::vector<T>(rows, junk),
                 std::vector<T>(n, junk), std::vector<T>(count, junk),    std::vector<T>(count, junk)};
  kernels_of<T>().row_forward(s, x.data(), pointer(gain), pointer(bias), r.y.data(), r.mean.data(), r.rstd.data());
  kernels_of<T>().row_backward(s, x.data(), pointer(gain), r.mean.data(), r.rstd.data(), dy.data(), r.dx.data(), r.dgain.data(), r.dbias.data());
  return r;
}

RowNorm layer(int64_t rows, int64_t width) { return {.rows = rows, .width = width, .measured = width, .affine_count = width}; }

// [batch, channels, space] with `groups` groups.
RowNorm grouped(int64_t batch, int64_t channels, int64_t space, int64_t groups) {
  const int64_t width = channels / groups * space;
  return {.rows = batch * groups, .width = width, .measured = width, .affine_count = channels, .affine_inner = space};
}

struct NamedSpec {
  const char* name;
  RowNorm spec;
};

std::vector<NamedSpec> small_specs() {
  std::vector<NamedSpec> all;
  for (int64_t width : {2, 3, 7, 8, 17, 33}) all.push_back({"layer", layer(5, width)});
  all.push_back({"no affine", {.rows = 3, .width = 9, .measured = 9}});
  all.push_back({"rms", {.rows = 3, .width = 19, .centre = false, .measured = 19, .affine_count = 19}});
  all.push_back({"partial rms", {.rows = 5, .width = 19, .centre = false, .measured = 4, .affine_count = 19}});
  all.push_back({"partial, centred", {.rows = 2, .width = 11, .measured = 6, .affine_count = 11}});
  all.push_back({"group", grouped(2, 6, 5, 3)});
  all.push_back({"instance", grouped(3, 4, 7, 4)});
  all.push_back({"one group", grouped(2, 3, 4, 1)});
  all.push_back({"group of [N, C]", grouped(3, 8, 1, 2)});
  all.push_back({"rms per channel", {.rows = 4, .width = 6, .centre = false, .measured = 2, .affine_count = 2, .affine_inner = 3}});
  all.push_back({"one gain per row", {.rows = 6, .width = 5, .centre = false, .measured = 5, .affine_count = 6, .affine_inner = 5, .eps = 0}});
  all.push_back({"runs cut by rows", {.rows = 6, .width = 5, .measured = 5, .affine_count = 2, .affine_inner = 3}});
  all.push_back({"elements cut by rows", {.rows = 6, .width = 5, .measured = 5, .affine_count = 3, .affine_inner = 1}});
  all.push_back({"rows within a run", {.rows = 6, .width = 2, .measured = 2, .affine_count = 3, .affine_inner = 4}});
  return all;
}

}  // namespace

TEST_CASE("row norm: forward meets the two-pass reference at all widths, offsets and row counts") {
  for (int64_t width : {1, 2, 3, 7, 8, 31, 32, 33, 127, 512, 1000, 4100}) {
    for (int64_t rows : {1, 2, 3, 31, 33, 127}) {
      for (auto [mean, sd] : {std::pair(0.0, 1.0), std::pair(1e4, 0.1)}) {
        for (bool centre : {true, false}) {
          RowNorm spec = layer(rows, width);
          spec.centre = centre;
          INFO("width " << width << ", rows " << rows << ", mean " << mean << ", centre " << centre);
          const auto seed = static_cast<uint64_t>(width * 1000 + rows);
          const auto x = normal_vector<float>(rows * width, seed, mean, sd);
          const auto gain = normal_vector<float>(width, seed + 1), bias = normal_vector<float>(width, seed + 2);
          const auto r = run_rows(spec, x, gain, bias, x);
          const auto expected = row_reference(spec, as_double(x), as_double(gain), as_double(bias));
          REQUIRE(first_difference(r.y, expected.y, f32_forward) == "");
          REQUIRE(first_difference(r.rstd, expected.rstd, f32_forward) == "");
          if (centre) REQUIRE(first_difference(means_of(r.mean), expected.mean, 1e-7) == "");
        }
      }
    }
  }
}

TEST_CASE("row norm: f64 forward, every kind of affine parameter, gain or bias missing") {
  for (const auto& [name, spec] : small_specs()) {
    INFO(name << ", width " << spec.width);
    const auto x = normal_vector<double>(spec.rows * spec.width, 3), gain = normal_vector<double>(spec.affine_count, 4),
               bias = normal_vector<double>(spec.affine_count, 5);
    const std::vector<double> none;
    for (const auto* g : {&gain, &none})
      for (const auto* b : {&bias, &none})
        CHECK(first_difference(run_rows(spec, x, *g, *b, x).y, row_reference(spec, x, *g, *b).y, f64_forward) == "");
  }
}

TEST_CASE("row norm: backward is the derivative of the definition") {
  for (const auto& [name, spec] : small_specs()) {
    INFO(name << ", width " << spec.width);
    auto x = normal_vector<double>(spec.rows * spec.width, 6), gain = normal_vector<double>(spec.affine_count, 7),
         bias = normal_vector<double>(spec.affine_count, 8);
    const auto dy = normal_vector<double>(spec.rows * spec.width, 9);
    const auto loss = [&, &spec = spec] {
      const auto y = row_reference(spec, x, gain, bias).y;
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
      return sum;
    };
    const auto r = run_rows(spec, x, gain, bias, dy);
    const auto dx = central_differences(x, difference_step, loss);
    CHECK(largest_magnitude(dx) > (spec.width == 2 ? 1e-4 : 1e-2));  // two values normalise to -1 and 1 whatever they are, but for eps
    CHECK(first_difference(r.dx, dx, difference_tolerance) == "");
    CHECK(first_difference(r.dgain, central_differences(gain, difference_step, loss), difference_tolerance) == "");
    CHECK(first_difference(r.dbias, central_differences(bias, difference_step, loss), difference_tolerance) == "");
  }
}

TEST_CASE("row norm: f32 backward meets f64, large offsets included") {
  std::vector<NamedSpec> specs;
  for (int64_t width : {1, 31, 127, 512, 1000, 4100, 9000})
    for (int64_t rows : {1, 3, 33, 300}) specs.push_back({"layer", layer(rows, width)});
  specs.push_back({"partial rms", {.rows = 127, .width = 1000, .centre = false, .measured = 63, .affine_count = 1000}});
  specs.push_back({"group", grouped(17, 32, 49, 4)});
  specs.push_back({"group of [N, C]", grouped(40, 512, 1, 8)});
  specs.push_back({"no affine", {.rows = 33, .width = 700, .measured = 700}});
  for (const auto& [name, spec] : specs) {
    for (auto [mean, sd] : {std::pair(0.0, 1.0), std::pair(1e4, 0.5)}) {
      INFO(name << ", " << spec.rows << " rows of " << spec.width << ", mean " << mean);
      const auto x = normal_vector<float>(spec.rows * spec.width, 10, mean, sd), dy = normal_vector<float>(spec.rows * spec.width, 11);
      const auto gain = normal_vector<float>(spec.affine_count, 12), bias = normal_vector<float>(spec.affine_count, 13);
      const auto r = run_rows(spec, x, gain, bias, dy);
      const auto expected = run_rows(spec, as_double(x), as_double(gain), as_double(bias), as_double(dy));
      REQUIRE(first_difference(r.dx, expected.dx, f32_backward) == "");
      REQUIRE(first_difference(r.dgain, expected.dgain, f32_backward) == "");
      REQUIRE(first_difference(r.dbias, expected.dbias, f32_backward) == "");
    }
  }
}

TEST_CASE("row norm: each of dx, dgain, dbias may be missing") {
  for (const RowNorm& spec : {layer(37, 50), grouped(5, 6, 7, 3)}) {
    const int64_t n = spec.rows * spec.width;
    const auto x = normal_vector<float>(n, 14), dy = normal_vector<float>(n, 15), gain = normal_vector<float>(spec.affine_count, 16);
    const auto all = run_rows(spec, x, gain, {}, dy);
    std::vector<float> dx(x.size()), dgain(gain.size()), dbias(gain.size());
    f32().row_backward(spec, x.data(), gain.data(), all.mean.data(), all.rstd.data(), dy.data(), dx.data(), nullptr, nullptr);
    f32().row_backward(spec, x.data(), gain.data(), all.mean.data(), all.rstd.data(), dy.data(), nullptr, dgain.data(), nullptr);
    f32().row_backward(spec, x.data(), gain.data(), all.mean.data(), all.rstd.data(), dy.data(), nullptr, nullptr, dbias.data());
    CHECK(first_difference(dx, all.dx, 0) == "");
    CHECK(first_difference(dgain, all.dgain, 0) == "");
    CHECK(first_difference(dbias, all.dbias, 0) == "");
  }
}

TEST_CASE("row norm: the same bits for every thread count") {
  for (const RowNorm& spec : {layer(300, 257), layer(7, 20000), grouped(40, 64, 31, 8), grouped(300, 256, 1, 4)}) {
    const int64_t n = spec.rows * spec.width;
    const auto x = normal_vector<float>(n, 17, 3), dy = normal_vector<float>(n, 18), gain = normal_vector<float>(spec.affine_count, 19);
    CHECK(same_bits_for_all_thread_counts([&] {
      const auto r = run_rows(spec, x, gain, gain, dy);
      std::vector<float> all = r.y;
      for (const auto* part : {&r.mean, &r.rstd, &r.dx, &r.dgain, &r.dbias}) append(all, *part);
      return all;
    }));
  }
}

TEST_CASE("row norm: a row's bits do not depend on the rows beside it, in every instruction set") {
  // Short rows are taken in pairs while they are few; the last of an odd number stands alone.
  for_each_instruction_set([] {
    for (bool centre : {true, false})
      for (int64_t measured : {33, 8}) {
        INFO("centre " << centre << ", measured " << measured);
        const int64_t width = 33;
        RowNorm all{.rows = 5, .width = width, .centre = centre, .measured = measured, .affine_count = width}, one = all;
        one.rows = 1;
        const auto x = normal_vector<float>(5 * width, 42, 3), dy = normal_vector<float>(5 * width, 43), gain = normal_vector<float>(width, 44);
        const auto together = run_rows(all, x, gain, gain, dy);
        const auto expected = row_reference(all, as_double(x), as_double(gain), as_double(gain));
        CHECK(first_difference(together.y, expected.y, f32_forward) == "");
        const auto exact = run_rows(all, as_double(x), as_double(gain), as_double(gain), as_double(dy));
        CHECK(first_difference(together.dx, exact.dx, f32_backward) == "");
        CHECK(first_difference(together.dgain, exact.dgain, f32_backward) == "");
        CHECK(first_difference(together.dbias, exact.dbias, f32_backward) == "");
        for (int64_t row = 0; row < 5; ++row) {
          const auto part = [&](const std::vector<float>& v) { return std::vector<float>(v.begin() + row * width, v.begin() + (row + 1) * width); };
          const auto alone = run_rows(one, part(x), gain, gain, part(dy));
          CHECK(alone.y == part(together.y));
          CHECK(alone.dx == part(together.dx));
        }
      }
  });
}

TEST_CASE("row norm: constant rows give the bias, exactly") {
  for (float value : {0.0F, 1.0F, 0.1F, 12345.678F, -3e7F}) {
    const std::vector<float> x(3 * 1000, value), bias = normal_vector<float>(1000, 20);
    const auto r = run_rows(layer(3, 1000), x, normal_vector<float>(1000, 21), bias, x);
    for (size_t i = 0; i < x.size(); ++i) REQUIRE(r.y[i] == bias[i % 1000]);
  }
}

TEST_CASE("row norm: worked values (A01, A05, A06, A11)") {
  const auto y_of = [](RowNorm spec, const std::vector<float>& x) { return run_rows<float>(spec, x, {}, {}, x).y; };
  const auto plain = [](int64_t rows, int64_t width) { return RowNorm{.rows = rows, .width = width, .measured = width}; };
  const auto rms = [](int64_t width, double eps) { return RowNorm{.rows = 1, .width = width, .centre = false, .measured = width, .eps = eps}; };

  // A01: large offset, small spread.
  CHECK(first_difference(y_of(plain(1, 4), {40000, 40001, 40002, 40003}), std::vector<double>{-1.3416354, -0.4472118, 0.4472118, 1.3416354},
                         six_digits) == "");
  for (auto [offset, expected] : {std::pair(0.0, -1.34164), std::pair(100.0, -1.34153), std::pair(1000.0, -1.34151), std::pair(10000.0, -1.33133)}) {
    std::vector<float> x(16);
    for (size_t i = 0; i < 16; ++i) x[i] = static_cast<float>(offset + static_cast<double>(i) * 1e-3);
    const auto y = y_of(plain(1, 16), x);
    CHECK(first_difference(y, row_reference(plain(1, 16), as_double(x), {}, {}).y, f32_forward) == "");
    CHECK(y[0] == Approx(expected).margin(f32_forward));
  }
  // A05: eps inside the root, biased variance.
  CHECK(first_difference(y_of(plain(1, 4), {1, 0, 0, 0}), std::vector<double>{1.7320046, -0.5773348, -0.5773348, -0.5773348}, six_digits) == "");
  CHECK(first_difference(y_of(plain(1, 2), {1e-3F, -1e-3F}), std::vector<double>{0.301511, -0.301511}, six_digits) == "");
  CHECK(first_difference(y_of(rms(4, 1e-6), {1e-3F, 0, 0, 0}), std::vector<double>{0.894427, 0, 0, 0}, six_digits) == "");
  // A06: squares that overflow, here and with centring; rows of zeros.
  CHECK(first_difference(y_of(rms(2, 1e-5), {3e19F, 4e19F}), std::vector<double>{0.848528, 1.131371}, six_digits) == "");
  CHECK(first_difference(y_of(plain(1, 2), {-3e19F, 3e19F}), std::vector<double>{-1, 1}, six_digits) == "");
  CHECK(first_difference(y_of(rms(2, 0), {3e-30F, 4e-30F}), std::vector<double>{0.848528, 1.131371}, six_digits) == "");
  const auto zeros = run_rows<float>(rms(4, 1e-6), {0, 0, 0, 0}, {}, {}, {1, 0, 0, 0});
  CHECK(first_difference(zeros.y, std::vector<double>{0, 0, 0, 0}, 0) == "");
  CHECK(first_difference(zeros.dx, std::vector<double>{1000, 0, 0, 0}, six_digits) == "");
  const std::vector<double> huge = {3e200, 4e200};
  CHECK(first_difference(run_rows<double>(rms(2, 1e-5), huge, {}, {}, huge).y, std::vector<double>{0.848528, 1.131371}, six_digits) == "");
  // A11: a row with an infinity spoils itself only.
  const auto spoilt = run_rows<float>(plain(2, 3), {1, 2, INFINITY, 1, 2, 3}, {}, {}, {1, 2, 4, 1, 2, 4});
  const auto clean = run_rows<float>(plain(1, 3), {1, 2, 3}, {}, {}, {1, 2, 4});
  CHECK(std::isnan(spoilt.y[0]));
  CHECK(first_difference(std::vector<float>(spoilt.y.begin() + 3, spoilt.y.end()), std::vector<double>{-1.2247356, 0, 1.2247356}, six_digits) == "");
  CHECK(first_difference(std::vector<float>(spoilt.dx.begin() + 3, spoilt.dx.end()), clean.dx, 0) == "");
}

TEST_CASE("row norm: squares that overflow or vanish in T, and what has no rstd") {
  for (bool centre : {true, false}) {
    const auto with = [&](double magnitude) {
      std::vector<float> x = {1, 5, 3, 1, 5, 3};
      for (size_t i = 0; i < 3; ++i) x[i] = static_cast<float>(x[i] * magnitude);
      return x;
    };
    const RowNorm spec{.rows = 2, .width = 3, .centre = centre, .measured = 3, .eps = 0};
    const std::vector<float> dy = {1, 2, 4, 1, 2, 4};
    for (double magnitude : {1e-37, 1e-30, 1e-21, 1e18, 1e20, 1e30, 1e36}) {
      INFO("magnitude " << magnitude << ", centre " << centre);
      const auto r = run_rows<float>(spec, with(magnitude), {}, {}, dy);
      for (size_t i = 0; i < 3; ++i) {
        CHECK(r.y[i] == Approx(r.y[i + 3]).epsilon(f32_forward).margin(f32_forward));
        CHECK(r.dx[i] * magnitude == Approx(r.dx[i + 3]).epsilon(f32_backward).margin(f32_backward));
      }
    }
    const auto flat = run_rows<float>(spec, with(0), {}, {}, dy);
    const auto beyond = run_rows<float>(spec, with(6e37), {}, {}, dy);
    const auto spoilt = run_rows<float>(spec, {1, INFINITY, 3, 1, 5, 3}, {}, {}, dy);
    for (size_t i = 0; i < 3; ++i) {
      CHECK((flat.y[i] == 0 && flat.dx[i] == 0));
      CHECK((std::isnan(beyond.y[i]) && std::isnan(spoilt.y[i]) && std::isnan(spoilt.dx[i])));
      CHECK((beyond.y[i + 3] == flat.y[i + 3] && spoilt.y[i + 3] == flat.y[i + 3] && spoilt.dx[i + 3] == flat.dx[i + 3]));
    }
  }
}

TEST_CASE("row norm: dgain and dbias of many rows (A15, A16)") {
  const std::vector<float> ones(5 * 205 * 3, 1);
  const auto many = run_rows(layer(5 * 205, 3), normal_vector<float>(5 * 205 * 3, 22), {1, 1, 1}, {0, 0, 0}, ones);
  CHECK(first_difference(many.dbias, std::vector<double>{1025, 1025, 1025}, 0) == "");
  const auto two = run_rows<float>(layer(2, 3), {0, 1, 5, 10, 0, 5}, {1, 1, 1}, {0, 0, 0}, {1, 2, 3, 4, 5, 6});
  CHECK(first_difference(two.dbias, std::vector<double>{5, 7, 9}, 0) == "");
  CHECK(first_difference(two.dgain, std::vector<double>{3.9732, -7.0495, 4.1662}, 2e-5) == "");

  const int before = num_threads();
  const auto x = normal_vector<float>(8192 * 24, 23);
  const std::vector<float> dy(x.size(), 1), gain(24, 1);
  for (int threads : {1, 2, 4, 8}) {
    set_num_threads(threads);
    for (int repeat = 0; repeat < 10; ++repeat)
      REQUIRE(first_difference(run_rows(layer(8192, 24), x, gain, gain, dy).dbias, std::vector<double>(24, 8192), 0) == "");
  }
  set_num_threads(before);
}

TEST_CASE("row norm: errors of equal rows do not add up") {
  // What the rounding of a mean takes is the same in equal rows, and dy with a mean adds it up; sums of equal terms round the same way each time.
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{16384, 64}, {512, 1000}, {300, 1100}}) {
    const RowNorm spec = layer(rows, width);
    const auto row = normal_vector<float>(width, 25, 100), gain = normal_vector<float>(width, 26), one_dy = normal_vector<float>(width, 27, 1, 0.1);
    std::vector<float> x, dy;
    for (int64_t i = 0; i < rows; ++i) append(x, row), append(dy, one_dy);
    INFO(rows << " rows of " << width);
    const auto have = run_rows<float>(spec, x, gain, gain, dy);
    const auto expected = run_rows<double>(spec, as_double(x), as_double(gain), as_double(gain), as_double(dy));
    constexpr double few_units = 2e-6;  // 16 units in the last place: chunks of up to 64 equal terms
    CHECK(first_difference(have.dgain, expected.dgain, few_units) == "");
    CHECK(first_difference(have.dbias, expected.dbias, few_units) == "");
    const auto ones = run_rows<float>(spec, x, {}, {}, std::vector<float>(x.size(), 1));
    for (const float dx : ones.dx) REQUIRE(std::abs(dx) < 2e-7F);  // a constant gradient moves no row
  }
}

TEST_CASE("row norm: backward's partial sums need little room") {
  const RowNorm spec = layer(2048, 4097);
  const std::vector<float> x(index(spec.rows * spec.width), 1), gain(index(spec.width), 1);
  const int64_t before = memory_stats().current_bytes;
  reset_peak_memory();
  run_rows<float>(spec, x, gain, gain, x);
  const int64_t room = memory_stats().peak_bytes - before;
  CHECK(room > 0);
  CHECK(room < spec.rows * spec.width * 4 / 6);
}

TEST_CASE("row norm: a row of two million entries at a large offset") {
  const int64_t width = 2'000'000;
  const auto x = normal_vector<float>(width, 24, 1e4, 0.1);
  const RowNorm spec{.rows = 1, .width = width, .measured = width};
  const auto r = run_rows<float>(spec, x, {}, {}, x);
  const auto expected = row_reference(spec, as_double(x), {}, {});
  CHECK(first_difference(r.y, expected.y, f32_forward) == "");
  CHECK(first_difference(means_of(r.mean), expected.mean, 1e-7) == "");
}

TEST_CASE("row norm: zero sizes (A12)") {
  const std::vector<float> none;
  const auto no_rows = run_rows<float>(layer(0, 10), none, std::vector<float>(10, 1), {}, none);
  CHECK(first_difference(no_rows.dgain, std::vector<double>(10, 0), 0) == "");
  CHECK(first_difference(no_rows.dbias, std::vector<double>(10, 0), 0) == "");
  const auto no_instances = run_rows<float>(grouped(0, 6, 5, 3), none, std::vector<float>(6, 1), {}, none);
  CHECK(first_difference(no_instances.dgain, std::vector<double>(6, 0), 0) == "");
  CHECK(run_rows<float>(layer(3, 0), none, {}, {}, none).y.empty());
  CHECK(run_rows<float>({.rows = 4, .width = 0, .measured = 0, .affine_count = 2, .affine_inner = 1}, none, {}, {}, none).dgain ==
        std::vector<float>{0, 0});
}
