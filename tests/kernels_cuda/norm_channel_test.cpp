// The channel normaliser on CUDA against the CPU's, which its own tests hold against the definition.

#include "kernels/cuda/backend.h"
#include "kernels/norm_support.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;

namespace {

template <class T>
struct ChannelInputs {
  ChannelNorm spec;
  std::vector<T> x, gain, bias, dy;
};

template <class T>
ChannelInputs<T> inputs_of(const ChannelNorm& spec, double mean = 2, double sd = 1) {
  const int64_t n = spec.batch * spec.channels * spec.space;
  const auto seed = static_cast<uint64_t>(n);
  return {spec, normal_vector<T>(n, seed, mean, sd), normal_vector<T>(spec.channels, seed + 1), normal_vector<T>(spec.channels, seed + 2),
          normal_vector<T>(n, seed + 3)};
}
template <class T>
ChannelInputs<double> as_double(const ChannelInputs<T>& in) {
  return {in.spec, test::as_double(in.x), test::as_double(in.gain), test::as_double(in.bias), test::as_double(in.dy)};
}

template <class T>
struct ChannelResult {
  std::vector<T> y, mean, shift, var, rstd, dx, dgain, dbias;
};

template <class T>
ChannelResult<T> on_cpu(const ChannelInputs<T>& in) {
  const size_t n = in.x.size(), c = index(in.spec.channels);
  ChannelResult<T> r{std::vector<T>(n), std::vector<T>(c), std::vector<T>(c), std::vector<T>(in.spec.divide ? c : 0),
                     std::vector<T>(c), std::vector<T>(n), std::vector<T>(c), std::vector<T>(c)};
  const NormKernels<T>& k = kernels_of<T>();
  k.channel_statistics(in.spec, in.x.data(), r.mean.data(), r.shift.data(), r.var.data(), r.rstd.data());
  k.channel_forward(in.spec, in.x.data(), r.mean.data(), r.shift.data(), r.rstd.data(), pointer(in.gain), pointer(in.bias), r.y.data());
  k.channel_backward(in.spec, false, in.x.data(), pointer(in.gain), r.mean.data(), r.rstd.data(), in.dy.data(), r.dx.data(), r.dgain.data(),
                     r.dbias.data());
  return r;
}

template <class T>
ChannelResult<T> on_device(const ChannelInputs<T>& in, size_t shift = 0) {
  const size_t n = in.x.size(), c = index(in.spec.channels);
  const DeviceArray<T> x(in.x, shift), gain(in.gain), bias(in.bias), dy(in.dy, shift), y(n, shift), mean(c), lost(c), var(in.spec.divide ? c : 0),
      rstd(c), dx(n, shift), dgain(c), dbias(c);
  const NormKernels<T>& k = CudaBackend::norm<T>();
  k.channel_statistics(in.spec, x.data(), mean.data(), lost.data(), var.data(), rstd.data());
  k.channel_forward(in.spec, x.data(), mean.data(), lost.data(), rstd.data(), gain.data(), bias.data(), y.data());
  k.channel_backward(in.spec, false, x.data(), gain.data(), mean.data(), rstd.data(), dy.data(), dx.data(), dgain.data(), dbias.data());
  return {y.host(), mean.host(), lost.host(), var.host(), rstd.host(), dx.host(), dgain.host(), dbias.host()};
}

/// Requires that the device's results in T meet the CPU's in double.
template <class T>
void check_against_cpu(const ChannelInputs<T>& in, size_t shift = 0) {
  constexpr bool f32 = sizeof(T) == 4;
  constexpr double forward = f32 ? f32_forward : f64_forward, backward = f32 ? f32_backward : 1e-11;  // f64: sums of some thousand terms
  const ChannelNorm& s = in.spec;
  INFO("[" << s.batch << ", " << s.channels << ", " << s.space << "], unbiased " << s.unbiased << ", divide " << s.divide << ", shift " << shift);
  const ChannelResult<T> have = on_device(in, shift);
  const ChannelResult<double> expected = on_cpu(as_double(in));
  REQUIRE(first_difference(have.y, expected.y, forward) == "");
  REQUIRE(first_difference(have.mean, expected.mean, f32 ? 1e-7 : forward) == "");
  REQUIRE(first_difference(have.var, expected.var, f32 ? 1e-7 : forward) == "");
  REQUIRE(first_difference(have.rstd, expected.rstd, f32 ? 1e-7 : forward) == "");
  REQUIRE(first_difference(have.dx, expected.dx, backward) == "");
  REQUIRE(first_difference(have.dgain, expected.dgain, backward) == "");
  REQUIRE(first_difference(have.dbias, expected.dbias, backward) == "");
  if (in.x.size() > index(2 * s.channels)) REQUIRE(largest_magnitude(have.dx) > 1e-3);
}

// Columns of one launch and of two, narrow and wide, in packs and not; short runs side by side, long ones, one channel, few channels.
std::vector<ChannelNorm> channel_shapes() {
  return {{.batch = 4, .channels = 1},
          {.batch = 3, .channels = 5},
          {.batch = 128, .channels = 8},
          {.batch = 33, .channels = 300},
          {.batch = 129, .channels = 31},
          {.batch = 2100, .channels = 4},
          {.batch = 3000, .channels = 3},
          {.batch = 1300, .channels = 1},
          {.batch = 2, .channels = 3, .space = 2},
          {.batch = 5, .channels = 20, .space = 49},
          {.batch = 40, .channels = 3, .space = 33},
          {.batch = 300, .channels = 2, .space = 12},
          {.batch = 3, .channels = 4, .space = 64},
          {.batch = 1, .channels = 2, .space = 1001},
          {.batch = 7, .channels = 3, .space = 1500},
          {.batch = 130, .channels = 1, .space = 81},
          {.batch = 9, .channels = 16, .space = 16}};
}

}  // namespace

TEST_CASE("cuda channel norm: all shapes, biased, unbiased and centring alone") {
  for (ChannelNorm spec : channel_shapes())
    for (const auto& [unbiased, divide] : {std::pair(false, true), std::pair(true, true), std::pair(false, false)}) {
      spec.unbiased = unbiased;
      spec.divide = divide;
      check_against_cpu(inputs_of<float>(spec));
      check_against_cpu(inputs_of<double>(spec));
    }
}

TEST_CASE("cuda channel norm: arrays that are not aligned to 16 bytes") {
  for (const ChannelNorm& spec :
       {ChannelNorm{.batch = 40, .channels = 12}, {.batch = 5, .channels = 4, .space = 6}, {.batch = 3, .channels = 2, .space = 512}}) {
    check_against_cpu(inputs_of<float>(spec), 1);
    check_against_cpu(inputs_of<double>(spec), 1);
  }
}

TEST_CASE("cuda channel norm: more than 65,535 rows and channels (H02)") {
  check_against_cpu(inputs_of<float>({.batch = 66'000, .channels = 1}));
  check_against_cpu(inputs_of<float>({.batch = 33'000, .channels = 2}));
  check_against_cpu(inputs_of<float>({.batch = 2, .channels = 66'000}));
}

TEST_CASE("cuda channel norm: a large offset loses nothing") {
  for (const ChannelNorm& spec : {ChannelNorm{.batch = 70, .channels = 9}, {.batch = 2000, .channels = 3}, {.batch = 4, .channels = 3, .space = 500}})
    check_against_cpu(inputs_of<float>(spec, 1e4, 0.1));
  // The first value is far from all others, where sums about it would cancel in f32.
  auto in = inputs_of<float>({.batch = 3000, .channels = 2});
  in.x[0] = 1e6F;
  check_against_cpu(in);
}

TEST_CASE("cuda channel norm: evaluation, and whatever may be missing") {
  for (const ChannelNorm& spec : {ChannelNorm{.batch = 37, .channels = 5},
                                  {.batch = 1500, .channels = 4},
                                  {.batch = 6, .channels = 3, .space = 100},
                                  {.batch = 37, .channels = 5, .divide = false}}) {
    INFO("[" << spec.batch << ", " << spec.channels << ", " << spec.space << "], divide " << spec.divide);
    const auto in = inputs_of<float>(spec);
    const auto all = on_device(in);
    const size_t n = in.x.size(), c = index(spec.channels);
    const DeviceArray<float> x(in.x), gain(in.gain), dy(in.dy), mean(all.mean), rstd(all.rstd), dx(n), dgain(c), dbias(c), y(n);
    const auto& k = CudaBackend::norm<float>();
    const auto backward = [&](bool given, const float* g, float* to_x, float* to_gain, float* to_bias) {
      k.channel_backward(spec, given, x.data(), g, mean.data(), rstd.data(), dy.data(), to_x, to_gain, to_bias);
    };
    constexpr double other_order = 1e-6;  // centring alone has sums of its own
    backward(false, gain.data(), dx.data(), nullptr, nullptr);
    backward(false, gain.data(), nullptr, dgain.data(), nullptr);
    backward(false, gain.data(), nullptr, nullptr, dbias.data());
    CHECK(first_difference(dx.host(), all.dx, other_order) == "");
    CHECK(first_difference(dgain.host(), all.dgain, 0) == "");
    CHECK(first_difference(dbias.host(), all.dbias, other_order) == "");

    // Given statistics: constants. shift, gain and bias may be null.
    std::vector<float> expected_dx(n), expected_y(n), expected_dgain(c), expected_dbias(c);
    for (const bool with_gain : {true, false}) {
      f32().channel_backward(spec, true, in.x.data(), with_gain ? in.gain.data() : nullptr, all.mean.data(), all.rstd.data(), in.dy.data(),
                             expected_dx.data(), expected_dgain.data(), expected_dbias.data());
      backward(true, with_gain ? gain.data() : nullptr, dx.data(), dgain.data(), dbias.data());
      CHECK(first_difference(dx.host(), expected_dx, f32_backward) == "");
      CHECK(first_difference(dgain.host(), expected_dgain, f32_backward) == "");
      CHECK(first_difference(dbias.host(), expected_dbias, f32_backward) == "");
      backward(true, with_gain ? gain.data() : nullptr, dx.data(), nullptr, nullptr);
      CHECK(first_difference(dx.host(), expected_dx, f32_backward) == "");
      f32().channel_forward(spec, in.x.data(), all.mean.data(), nullptr, all.rstd.data(), with_gain ? in.gain.data() : nullptr, nullptr,
                            expected_y.data());
      k.channel_forward(spec, x.data(), mean.data(), nullptr, rstd.data(), with_gain ? gain.data() : nullptr, nullptr, y.data());
      CHECK(first_difference(y.host(), expected_y, f32_forward) == "");
    }
    const DeviceArray<float> var(std::vector<float>(c, 4)), from_var(c);
    k.channel_rstd(spec, spec.divide ? var.data() : nullptr, from_var.data());
    CHECK(first_difference(from_var.host(), std::vector<double>(c, spec.divide ? 1 / std::sqrt(4 + spec.eps) : 1), 1e-7) == "");
  }
}

TEST_CASE("cuda channel norm: worked values (A03, A08, A09, A11)") {
  const auto r = on_device<float>({{.batch = 4, .channels = 1}, {4096, 4096.25F, 4096.5F, 4096.75F}, {}, {}, {1, 2, 4, 8}});
  CHECK(first_difference(r.y, std::vector<double>{-1.341555, -0.447185, 0.447185, 1.341555}, six_digits) == "");
  CHECK(r.mean[0] == 4096.375F);
  CHECK(r.var[0] == 0.078125F);
  const auto unbiased = on_device<float>({{.batch = 4, .channels = 1, .unbiased = true}, {4096, 4096.25F, 4096.5F, 4096.75F}, {}, {}, {1, 2, 4, 8}});
  CHECK(unbiased.var[0] == Approx(0.1041667).epsilon(1e-6));
  const auto pairs = on_device<float>({{.batch = 1, .channels = 2, .space = 2}, {1, 3, 5, 9}, {}, {}, {1, 2, 3, 4}});
  CHECK(first_difference(pairs.y, std::vector<double>{-0.999995, 0.999995, -0.9999988, 0.9999988}, six_digits) == "");
  std::vector<float> counting;
  for (int n = 1; n <= 4; ++n)
    for (int c = 0; c < 3; ++c)
      for (int i = 0; i < 4; ++i) counting.push_back(static_cast<float>(n + 4 * c + i));
  const auto spaced = on_device<float>({{.batch = 4, .channels = 3, .space = 4}, counting, {}, {}, counting});
  CHECK(spaced.mean == std::vector<float>{4, 8, 12});
  CHECK(spaced.var == std::vector<float>(3, 2.5F));
  CHECK(first_difference(std::vector<float>(spaced.y.begin(), spaced.y.begin() + 4), std::vector<double>{-1.897363, -1.264909, -0.632454, 0},
                         six_digits) == "");
  for (const std::vector<float>& x : {std::vector<float>{1, INFINITY}, {INFINITY, 1}}) {
    const auto spoilt = on_device<float>({{.batch = 2, .channels = 1}, x, {}, {}, {1, 2}});
    CHECK(spoilt.mean[0] == INFINITY);
    CHECK(std::isnan(spoilt.var[0]));
    CHECK(std::isnan(spoilt.rstd[0]));
  }
}

TEST_CASE("cuda channel norm: constant and spoilt channels, the others as before") {
  for (const int64_t space : {1, 7, 100}) {
    INFO("space " << space);
    const ChannelNorm spec{.batch = 50, .channels = 3, .space = space};
    ChannelInputs<float> in = inputs_of<float>(spec);
    in.gain.clear();
    in.bias.clear();
    const auto before = on_device(in);
    for (size_t i = 0; i < in.x.size(); ++i)
      if (i / index(space) % 3 == 1) in.x[i] = 1234.567F;
    const auto constant = on_device(in);
    CHECK(constant.var[1] == 0);
    CHECK(constant.y[index(space)] == 0);
    in.x[index(space) + index(space) / 2] = INFINITY;
    const auto spoilt = on_device(in);
    CHECK(std::isnan(spoilt.y[index(space)]));
    for (size_t i = 0; i < in.x.size(); ++i)
      if (i / index(space) % 3 != 1) REQUIRE((spoilt.y[i] == before.y[i] && spoilt.dx[i] == before.dx[i]));
  }
}

namespace {

// In channel 1: the values 1, 5, 3 times the magnitude, around an offset of the same size; the others are ordinary.
template <class T>
ChannelInputs<T> with_magnitude(int64_t space, double magnitude) {
  ChannelInputs<T> in = inputs_of<T>({.batch = 3, .channels = 3, .space = space, .eps = 0});
  in.gain.clear();
  in.bias.clear();
  const double values[] = {1, 5, 3};
  for (int64_t n = 0; n < 3; ++n)
    for (int64_t i = 0; i < space; ++i) in.x[index((n * 3 + 1) * space + i)] = static_cast<T>(values[(n + i) % 3] * magnitude);
  return in;
}

template <class T>
void check_magnitudes(const std::vector<double>& magnitudes, double beyond_all) {
  constexpr double forward = sizeof(T) == 4 ? f32_forward : f64_forward, most = static_cast<double>(std::numeric_limits<T>::max());
  for (const int64_t space : {1, 3, 72}) {
    const auto one = on_device(with_magnitude<T>(space, 1));
    for (const double magnitude : magnitudes) {
      INFO("space " << space << ", magnitude " << magnitude);
      const auto r = on_device(with_magnitude<T>(space, magnitude));
      CHECK(first_difference(r.y, one.y, forward) == "");
      CHECK(first_difference(r.dgain, one.dgain, forward) == "");
      auto scaled = r.dx;
      for (size_t i = 0; i < scaled.size(); ++i)
        if (i / index(space) % 3 == 1) scaled[i] = static_cast<T>(static_cast<double>(scaled[i]) * magnitude);
      CHECK(first_difference(scaled, one.dx, sizeof(T) == 4 ? f32_backward : 1e-11) == "");
      const double have = static_cast<double>(r.var[1]), var = static_cast<double>(one.var[1]) * magnitude * magnitude;
      CHECK((var < most ? std::abs(have - var) <= 1e-6 * var + 1e-38 : std::isinf(have)));
    }
    // No spread and no eps: y = bias, no gradient. A deviation that has no inverse: not a number, in that channel alone.
    auto no_spread = with_magnitude<T>(space, 0);
    no_spread.bias = {3, 4, 5};
    const auto flat = on_device(no_spread), beyond = on_device(with_magnitude<T>(space, beyond_all));
    for (size_t i = 0; i < one.y.size(); ++i) {
      const bool here = i / index(space) % 3 == 1;
      if (here) CHECK((flat.y[i] == 4 && flat.dx[i] == 0));
      CHECK(std::isnan(beyond.y[i]) == here);
      if (!here) CHECK(beyond.y[i] == one.y[i]);
    }
  }
}

}  // namespace

TEST_CASE("cuda channel norm: squares that overflow or vanish, and what has no rstd") {
  check_magnitudes<float>({1e-30, 1e-21, 1e18, 1e20, 1e30, 1e36}, 6e37);
  check_magnitudes<double>({1e-200, 1e-160, 1e150, 1e160, 1e300}, 3e307);
}

TEST_CASE("cuda channel norm: two runs have the same bits (H08)") {
  for (const ChannelNorm& spec : channel_shapes()) {
    const auto in = inputs_of<float>(spec, 3);
    const auto one = on_device(in), two = on_device(in);
    CHECK((one.y == two.y && one.var == two.var && one.dx == two.dx && one.dgain == two.dgain && one.dbias == two.dbias));
    CHECK(largest_magnitude(one.dbias) > 0);
  }
}

TEST_CASE("cuda channel norm: zero sizes (A12)") {
  for (const ChannelNorm& spec :
       {ChannelNorm{.batch = 0, .channels = 5}, ChannelNorm{.batch = 3, .channels = 5, .space = 0}, ChannelNorm{.batch = 3, .channels = 0}}) {
    const auto r = on_device(inputs_of<float>(spec));
    const std::vector<float> zeros(index(spec.channels), 0);
    CHECK((r.mean == zeros && r.var == zeros && r.rstd == zeros && r.dgain == zeros && r.dbias == zeros && r.y.empty()));
  }
}
