// The channel normaliser against plain two-pass loops in double.

#include "kernels/norm_support.h"

using namespace lamina;
using namespace lamina::test;

namespace {

struct ChannelReference {
  std::vector<double> y, mean, var;
};

ChannelReference channel_reference(const ChannelNorm& s, const std::vector<double>& x, const std::vector<double>& gain,
                                   const std::vector<double>& bias) {
  ChannelReference r{std::vector<double>(x.size()), std::vector<double>(index(s.channels)), std::vector<double>(index(s.channels))};
  const double m = static_cast<double>(s.batch * s.space);
  for (int64_t c = 0; c < s.channels; ++c) {
    const auto each = [&](auto&& f) {
      for (int64_t n = 0; n < s.batch; ++n)
        for (int64_t i = 0; i < s.space; ++i) f(index((n * s.channels + c) * s.space + i));
    };
    double mean = 0, square = 0;
    each([&](size_t i) { mean += x[i] / m; });
    each([&](size_t i) { square += (x[i] - mean) * (x[i] - mean); });
    const double var = square / (s.unbiased ? m - 1 : m);
    r.mean[index(c)] = mean;
    r.var[index(c)] = var;
    const double deviation = s.divide ? std::sqrt(var + s.eps) : 1;
    each([&](size_t i) { r.y[i] = (x[i] - mean) / deviation * gain[index(c)] + bias[index(c)]; });
  }
  return r;
}

template <class T>
struct ChannelResult {
  std::vector<T> y, mean, shift, var, rstd, dx, dgain, dbias;
};

template <class T>
ChannelResult<T> run_channels(const ChannelNorm& s, const std::vector<T>& x, const std::vector<T>& gain, const std::vector<T>& bias,
                              const std::vector<T>& dy) {
  const size_t n = x.size(), c = index(s.channels);
  const T junk = T(77);
  ChannelResult<T> r{std::vector<T>(n, junk), std::vector<T>(c, junk), std::vector<T>(c, junk), std::vector<T>(c, junk),
                     std::vector<T>(c, junk), std::vector<T>(n, junk), std::vector<T>(c, junk), std::vector<T>(c, junk)};
  const NormKernels<T>& k = kernels_of<T>();
  k.channel_statistics(s, x.data(), r.mean.data(), r.shift.data(), r.var.data(), r.rstd.data());
  k.channel_forward(s, x.data(), r.mean.data(), r.shift.data(), r.rstd.data(), pointer(gain), pointer(bias), r.y.data());
  k.channel_backward(s, false, x.data(), pointer(gain), r.mean.data(), r.rstd.data(), dy.data(), r.dx.data(), r.dgain.data(), r.dbias.data());
  return r;
}

std::vector<ChannelNorm> channel_shapes() {
  return {{.batch = 4, .channels = 1},
          {.batch = 3, .channels = 5},
          {.batch = 33, .channels = 300},
          {.batch = 129, .channels = 31},
          {.batch = 70, .channels = 520},
          {.batch = 130, .channels = 1000},
          {.batch = 160, .channels = 1030},
          {.batch = 300, .channels = 600},
          {.batch = 2, .channels = 3, .space = 2},
          {.batch = 5, .channels = 20, .space = 49},
          {.batch = 40, .channels = 3, .space = 33},
          {.batch = 60, .channels = 1, .space = 100},
          {.batch = 1, .channels = 2, .space = 1000},
          {.batch = 9, .channels = 16, .space = 16},
          {.batch = 35, .channels = 240, .space = 40},
          {.batch = 3, .channels = 400, .space = 250}};
}

}  // namespace

TEST_CASE("channel norm: f32 forward and backward meet the definition and f64") {
  for (ChannelNorm spec : channel_shapes()) {
    for (auto [unbiased, divide] : {std::pair(false, true), std::pair(true, true), std::pair(false, false)}) {
      spec.unbiased = unbiased;
      spec.divide = divide;
      INFO("[" << spec.batch << ", " << spec.channels << ", " << spec.space << "], unbiased " << unbiased << ", divide " << divide);
      const int64_t n = spec.batch * spec.channels * spec.space;
      const auto x = normal_vector<float>(n, 25, 2), dy = normal_vector<float>(n, 26), gain = normal_vector<float>(spec.channels, 27),
                 bias = normal_vector<float>(spec.channels, 28);
      const auto r = run_channels(spec, x, gain, bias, dy);
      const auto expected = channel_reference(spec, as_double(x), as_double(gain), as_double(bias));
      REQUIRE(first_difference(r.y, expected.y, f32_forward) == "");
      REQUIRE(first_difference(r.mean, expected.mean, divide ? 1e-7 : 1e-6) == "");  // mean-only norms take one pass
      if (divide) REQUIRE(first_difference(r.var, expected.var, 1e-6) == "");
      const auto exact = run_channels(spec, as_double(x), as_double(gain), as_double(bias), as_double(dy));
      REQUIRE(first_difference(exact.y, expected.y, f64_forward) == "");
      REQUIRE(first_difference(r.dx, exact.dx, f32_backward) == "");
      REQUIRE(first_difference(r.dgain, exact.dgain, f32_backward) == "");
      REQUIRE(first_difference(r.dbias, exact.dbias, f32_backward) == "");
    }
  }
}

TEST_CASE("channel norm: backward is the derivative of the definition, biased, unbiased and in evaluation") {
  for (ChannelNorm spec :
       {ChannelNorm{.batch = 4, .channels = 3}, ChannelNorm{.batch = 131, .channels = 2}, ChannelNorm{.batch = 3, .channels = 2, .space = 5}}) {
    for (auto [unbiased, divide] : {std::pair(false, true), std::pair(true, true), std::pair(false, false)}) {
      spec.unbiased = unbiased;
      spec.divide = divide;
      INFO("[" << spec.batch << ", " << spec.channels << ", " << spec.space << "], unbiased " << unbiased << ", divide " << divide);
      const int64_t n = spec.batch * spec.channels * spec.space;
      auto x = normal_vector<double>(n, 29), gain = normal_vector<double>(spec.channels, 30), bias = normal_vector<double>(spec.channels, 31);
      const auto dy = normal_vector<double>(n, 32);
      const auto loss = [&] {
        const auto y = channel_reference(spec, x, gain, bias).y;
        double sum = 0;
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
        return sum;
      };
      const auto r = run_channels(spec, x, gain, bias, dy);
      const auto dx = central_differences(x, difference_step, loss);
      CHECK(largest_magnitude(dx) > 1e-2);
      CHECK(first_difference(r.dx, dx, difference_tolerance) == "");
      CHECK(first_difference(r.dgain, central_differences(gain, difference_step, loss), difference_tolerance) == "");
      CHECK(first_difference(r.dbias, central_differences(bias, difference_step, loss), difference_tolerance) == "");

      auto evaluated = r;
      f64().channel_backward(spec, true, x.data(), gain.data(), r.mean.data(), r.rstd.data(), dy.data(), evaluated.dx.data(), evaluated.dgain.data(),
                             nullptr);
      for (size_t i = 0; i < dy.size(); ++i) {
        const size_t c = i / index(spec.space) % index(spec.channels);
        REQUIRE(evaluated.dx[i] == Approx(dy[i] * gain[c] * r.rstd[c]).epsilon(1e-14));
      }
      CHECK(first_difference(evaluated.dgain, r.dgain, 1e-14) == "");
      // Without dgain mean-only norms sum dy alone.
      std::vector<double> dx_alone(r.dx.size()), dbias_alone(r.dbias.size());
      f64().channel_backward(spec, false, x.data(), gain.data(), r.mean.data(), r.rstd.data(), dy.data(), dx_alone.data(), nullptr,
                             dbias_alone.data());
      CHECK(first_difference(dx_alone, r.dx, 1e-14) == "");
      CHECK(first_difference(dbias_alone, r.dbias, 1e-14) == "");
    }
  }
}

TEST_CASE("channel norm: worked values (A03), constant and spoilt channels") {
  const auto r = run_channels<float>({.batch = 4, .channels = 1}, {4096, 4096.25F, 4096.5F, 4096.75F}, {}, {}, {1, 2, 4, 8});
  CHECK(first_difference(r.y, std::vector<double>{-1.341555, -0.447185, 0.447185, 1.341555}, six_digits) == "");
  CHECK(r.var[0] == 0.078125F);
  const auto spaced =
      run_channels<float>({.batch = 2, .channels = 1, .space = 2, .unbiased = true}, {4096, 4096.25F, 4096.5F, 4096.75F}, {}, {}, {1, 2, 4, 8});
  CHECK(spaced.var[0] == Approx(0.1041667).epsilon(1e-6));
  for (int64_t space : {1, 7}) {
    const ChannelNorm spec{.batch = 50, .channels = 3, .space = space};
    auto x = normal_vector<float>(150 * space, 33);
    const auto before = run_channels(spec, x, {}, {}, x);
    for (size_t i = 0; i < x.size(); ++i)
      if (i / index(space) % 3 == 1) x[i] = 1234.567F;
    const auto constant = run_channels(spec, x, {}, {}, x);
    CHECK(constant.var[1] == 0);
    CHECK(constant.y[index(space)] == 0);
    x[index(space)] = INFINITY;
    const auto spoilt = run_channels(spec, x, {}, {}, x);
    CHECK(std::isnan(spoilt.y[index(space)]));
    for (size_t i = 0; i < x.size(); ++i)
      if (i / index(space) % 3 != 1) REQUIRE((spoilt.y[i] == before.y[i] && spoilt.dx[i] == before.dx[i]));
  }
}

TEST_CASE("channel norm: squares that overflow or vanish in T, and what has no rstd") {
  for (int64_t space : {1, 3}) {
    // In channel 1: the values 1, 5, 3 times the magnitude, around an offset of the same size; the others are ordinary.
    const ChannelNorm spec{.batch = 3, .channels = 3, .space = space, .eps = 0};
    const auto ordinary = normal_vector<float>(9 * space, 37);
    const auto with = [&](double magnitude) {
      auto x = ordinary;
      const double values[] = {1, 5, 3};
      for (int64_t n = 0; n < 3; ++n)
        for (int64_t i = 0; i < space; ++i) x[index((n * 3 + 1) * space + i)] = static_cast<float>(values[(n + i) % 3] * magnitude);
      return x;
    };
    const auto one = run_channels(spec, with(1), {}, {}, ordinary);
    for (double magnitude : {1e-30, 1e-21, 1e18, 1e20, 1e30, 1e36}) {
      INFO("space " << space << ", magnitude " << magnitude);
      const auto r = run_channels(spec, with(magnitude), {}, {}, ordinary);
      CHECK(first_difference(r.y, one.y, f32_forward) == "");
      CHECK(first_difference(r.dgain, one.dgain, f32_forward) == "");
      auto scaled = r.dx;
      for (size_t i = 0; i < scaled.size(); ++i)
        if (i / index(space) % 3 == 1) scaled[i] = static_cast<float>(scaled[i] * magnitude);
      CHECK(first_difference(scaled, one.dx, f32_backward) == "");
      const double var = one.var[1] * magnitude * magnitude;
      CHECK((var < 3e38 ? std::abs(r.var[1] - var) <= 1e-6 * var + 1e-38 : std::isinf(r.var[1])));
    }
    // No spread and no eps: y = bias, no gradient. A deviation beyond 8e37: not a number, in that channel alone.
    const auto flat = run_channels(spec, with(0), {}, {3, 4, 5}, ordinary);
    const auto beyond = run_channels(spec, with(6e37), {}, {}, ordinary);
    for (size_t i = 0; i < ordinary.size(); ++i) {
      const bool here = i / index(space) % 3 == 1;
      if (here) CHECK((flat.y[i] == 4 && flat.dx[i] == 0));
      CHECK(std::isnan(beyond.y[i]) == here);
      if (!here) CHECK(beyond.y[i] == one.y[i]);
    }
  }
}

TEST_CASE("channel norm: first entries unlike the rest cost no digits, in every instruction set") {
  // The sums are taken about the mean of a channel's first entries; here that is up to 1e5 deviations from the channel's own.
  for_each_instruction_set([] {
    for (const ChannelNorm& spec : {ChannelNorm{.batch = 128, .channels = 300}, ChannelNorm{.batch = 1000, .channels = 70},
                                    ChannelNorm{.batch = 40, .channels = 20, .space = 49}, ChannelNorm{.batch = 40, .channels = 3, .space = 49}}) {
      for (double far : {0.0, 1.0, 3.0, 1e3, 1e5}) {
        INFO("[" << spec.batch << ", " << spec.channels << ", " << spec.space << "], far by " << far);
        const int64_t n = spec.batch * spec.channels * spec.space, first = spec.channels * (spec.space == 1 ? 16 : spec.space);
        auto x = normal_vector<float>(n, 38, 2);
        // Every second channel, so that one that is near is taken again beside one that is far.
        for (int64_t i = first; i < n; ++i)
          if (i / spec.space % spec.channels % 2 == 0) x[index(i)] += static_cast<float>(far);
        const auto dy = normal_vector<float>(n, 39), gain = normal_vector<float>(spec.channels, 40), bias = normal_vector<float>(spec.channels, 41);
        const auto r = run_channels(spec, x, gain, bias, dy);
        const auto expected = channel_reference(spec, as_double(x), as_double(gain), as_double(bias));
        REQUIRE(first_difference(r.y, expected.y, f32_forward) == "");
        REQUIRE(first_difference(r.mean, expected.mean, 1e-7) == "");
        REQUIRE(first_difference(r.var, expected.var, 1e-6) == "");
        const auto exact = run_channels(spec, as_double(x), as_double(gain), as_double(bias), as_double(dy));
        REQUIRE(first_difference(r.dx, exact.dx, f32_backward) == "");
        REQUIRE(first_difference(r.dgain, exact.dgain, f32_backward) == "");
        REQUIRE(first_difference(r.dbias, exact.dbias, f32_backward) == "");
      }
    }
  });
}

TEST_CASE("channel norm: the same bits for every thread count") {
  for (const ChannelNorm& spec : channel_shapes()) {
    const int64_t n = spec.batch * spec.channels * spec.space;
    const auto x = normal_vector<float>(n, 34, 3), dy = normal_vector<float>(n, 35), gain = normal_vector<float>(spec.channels, 36);
    CHECK(same_bits_for_all_thread_counts([&] {
      const auto r = run_channels(spec, x, gain, gain, dy);
      std::vector<float> all = r.y;
      for (const auto* part : {&r.mean, &r.var, &r.rstd, &r.dx, &r.dgain, &r.dbias}) append(all, *part);
      return all;
    }));
  }
}

TEST_CASE("channel norm: with given statistics dx is the same whether anybody wants the parameters' gradients or not") {
  for (const ChannelNorm& spec : channel_shapes()) {
    INFO("[" << spec.batch << ", " << spec.channels << ", " << spec.space << "]");
    const int64_t n = spec.batch * spec.channels * spec.space;
    const auto x = normal_vector<float>(n, 61), dy = normal_vector<float>(n, 62), gain = normal_vector<float>(spec.channels, 63),
               mean = normal_vector<float>(spec.channels, 64), rstd = normal_vector<float>(spec.channels, 65);
    std::vector<float> all(x.size(), 77), alone(x.size(), 77), dgain(gain.size()), dbias(gain.size());
    f32().channel_backward(spec, true, x.data(), gain.data(), mean.data(), rstd.data(), dy.data(), alone.data(), nullptr, nullptr);
    f32().channel_backward(spec, true, x.data(), gain.data(), mean.data(), rstd.data(), dy.data(), all.data(), dgain.data(), dbias.data());
    CHECK(alone == all);
    for (size_t i = 0; i < alone.size(); i += 1 + alone.size() / 100) {
      const size_t c = i / index(spec.space) % gain.size();
      CHECK(alone[i] == gain[c] * rstd[c] * dy[i]);
    }
  }
}

TEST_CASE("channel norm: zero sizes (A12)") {
  for (const ChannelNorm& spec :
       {ChannelNorm{.batch = 0, .channels = 5}, ChannelNorm{.batch = 3, .channels = 5, .space = 0}, ChannelNorm{.batch = 3, .channels = 0}}) {
    const auto channels = index(spec.channels);
    std::vector<float> mean(channels, 77), shift(channels, 77), var(channels, 77), rstd(channels, 77), dgain(channels, 77), dbias(channels, 77);
    f32().channel_statistics(spec, nullptr, mean.data(), shift.data(), var.data(), rstd.data());
    f32().channel_forward(spec, nullptr, mean.data(), shift.data(), rstd.data(), nullptr, nullptr, nullptr);
    f32().channel_backward(spec, false, nullptr, nullptr, mean.data(), rstd.data(), nullptr, nullptr, dgain.data(), dbias.data());
    CHECK(first_difference(dgain, std::vector<double>(channels, 0), 0) == "");
    CHECK(first_difference(dbias, std::vector<double>(channels, 0), 0) == "");
    CHECK(first_difference(mean, std::vector<double>(channels, 0), 0) == "");
  }
}
