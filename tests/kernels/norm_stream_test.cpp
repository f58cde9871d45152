// Normalisers of tensors beyond the caches: results that go past them have the bits of those that do not, and meet f64.

#include "kernels/cpu/scratch.h"
#include "kernels/norm_support.h"

using namespace lamina;
using namespace lamina::test;

namespace {

constexpr float junk = 77;
constexpr double f32_sums = 2e-4;  // of 2000 and more terms of order 1, in one chain where vectors have one lane

// A result buffer that begins at a cache line, as tensors do, or one element behind it, where nothing is streamed; with a guard at both ends.
class Result {
 public:
  Result(int64_t n, bool at_line) : n_(n), memory_(n + 2 * line), data_(memory_.data() + line + (at_line ? 0 : 1)) {
    std::fill(memory_.data(), memory_.data() + n + 2 * line, junk);
  }
  float* data() { return data_; }
  std::vector<float> values() const { return {data_, data_ + n_}; }
  bool guards_stand() const { return data_[-1] == junk && data_[n_] == junk; }

 private:
  static constexpr int64_t line = 16;
  int64_t n_;
  Scratch<float> memory_;
  float* data_;
};

struct Outcome {
  std::vector<float> y, dx, dgain, dbias;
};

// What forward(y) and backward(dx, dgain, dbias) give.
template <class Forward, class Backward>
Outcome outcome(int64_t n, int64_t affine, bool at_line, Forward forward, Backward backward) {
  Result y(n, at_line), dx(n, at_line);
  Outcome out{{}, {}, std::vector<float>(index(affine), junk), std::vector<float>(index(affine), junk)};
  forward(y.data());
  backward(dx.data(), out.dgain.data(), out.dbias.data());
  CHECK((y.guards_stand() && dx.guards_stand()));
  out.y = y.values();
  out.dx = dx.values();
  return out;
}

void check_same(const Outcome& streamed, const Outcome& plain) {
  CHECK(streamed.y == plain.y);
  CHECK(streamed.dx == plain.dx);
  CHECK(streamed.dgain == plain.dgain);
  CHECK(streamed.dbias == plain.dbias);
}

}  // namespace

TEST_CASE("row norm: beyond the caches the same bits, wherever vectors begin, in every instruction set") {
  const int64_t rows = 4100, width = 1029, space = 961;
  const std::vector<RowNorm> specs{{.rows = rows, .width = width, .measured = width, .affine_count = width},
                                   {.rows = rows, .width = width, .centre = false, .measured = 65, .affine_count = width},
                                   {.rows = 69 * 8, .width = 8 * space, .measured = 8 * space, .affine_count = 64, .affine_inner = space}};
  for (const RowNorm& spec : specs) {
    INFO(spec.rows << " rows of " << spec.width << ", measured " << spec.measured << ", runs of " << spec.affine_inner);
    const int64_t n = spec.rows * spec.width;
    REQUIRE(n * 4 >= int64_t{16} << 20);
    const auto x = normal_vector<float>(n, 51, 3), dy = normal_vector<float>(n, 52), gain = normal_vector<float>(spec.affine_count, 53),
               bias = normal_vector<float>(spec.affine_count, 54);
    const auto x64 = as_double(x), dy64 = as_double(dy), gain64 = as_double(gain), bias64 = as_double(bias);
    std::vector<double> y64(x.size()), dx64(x.size()), mean64(2 * index(spec.rows)), rstd64(index(spec.rows)), dgain64(gain.size()),
        dbias64(gain.size());
    f64().row_forward(spec, x64.data(), gain64.data(), bias64.data(), y64.data(), mean64.data(), rstd64.data());
    f64().row_backward(spec, x64.data(), gain64.data(), mean64.data(), rstd64.data(), dy64.data(), dx64.data(), dgain64.data(), dbias64.data());
    for_each_instruction_set([&] {
      std::vector<float> mean(2 * index(spec.rows)), rstd(index(spec.rows));
      const auto run = [&](bool at_line) {
        return outcome(
            n, spec.affine_count, at_line,
            [&](float* y) { f32().row_forward(spec, x.data(), gain.data(), bias.data(), y, mean.data(), rstd.data()); },
            [&](float* dx, float* dgain, float* dbias) {
              f32().row_backward(spec, x.data(), gain.data(), mean.data(), rstd.data(), dy.data(), dx, dgain, dbias);
            });
      };
      const Outcome streamed = run(true);
      check_same(streamed, run(false));
      CHECK(first_difference(streamed.y, y64, f32_forward) == "");
      CHECK(first_difference(streamed.dx, dx64, f32_backward) == "");
    });
  }
}

TEST_CASE("channel norm: beyond the caches the same bits, wherever vectors begin, in every instruction set") {
  for (const ChannelNorm& spec : {ChannelNorm{.batch = 4100, .channels = 1029}, ChannelNorm{.batch = 69, .channels = 64, .space = 961},
                                  ChannelNorm{.batch = 4, .channels = 1100, .space = 961},
                                  ChannelNorm{.batch = 5, .channels = 839'001, .eps = 1}}) {  // too few rows to go together
    INFO("[" << spec.batch << ", " << spec.channels << ", " << spec.space << "]");
    const int64_t n = spec.batch * spec.channels * spec.space, c = spec.channels;
    REQUIRE(n * 4 >= int64_t{16} << 20);
    const auto x = normal_vector<float>(n, 55, 3), dy = normal_vector<float>(n, 56), gain = normal_vector<float>(c, 57),
               bias = normal_vector<float>(c, 58);
    const auto x64 = as_double(x), dy64 = as_double(dy), gain64 = as_double(gain), bias64 = as_double(bias);
    std::vector<double> y64(x.size()), dx64(x.size()), mean64(gain.size()), shift64(gain.size()), var64(gain.size()), rstd64(gain.size()),
        dgain64(gain.size()), dbias64(gain.size());
    f64().channel_statistics(spec, x64.data(), mean64.data(), shift64.data(), var64.data(), rstd64.data());
    f64().channel_forward(spec, x64.data(), mean64.data(), shift64.data(), rstd64.data(), gain64.data(), bias64.data(), y64.data());
    f64().channel_backward(spec, false, x64.data(), gain64.data(), mean64.data(), rstd64.data(), dy64.data(), dx64.data(), dgain64.data(),
                           dbias64.data());
    for_each_instruction_set([&] {
      std::vector<float> mean(gain.size()), shift(gain.size()), var(gain.size()), rstd(gain.size());
      f32().channel_statistics(spec, x.data(), mean.data(), shift.data(), var.data(), rstd.data());
      const auto run = [&](bool at_line) {
        return outcome(
            n, c, at_line,
            [&](float* y) { f32().channel_forward(spec, x.data(), mean.data(), shift.data(), rstd.data(), gain.data(), bias.data(), y); },
            [&](float* dx, float* dgain, float* dbias) {
              f32().channel_backward(spec, false, x.data(), gain.data(), mean.data(), rstd.data(), dy.data(), dx, dgain, dbias);
            });
      };
      const Outcome streamed = run(true);
      check_same(streamed, run(false));
      CHECK(first_difference(streamed.y, y64, f32_forward) == "");
      CHECK(first_difference(streamed.dx, dx64, f32_backward) == "");
      CHECK(first_difference(streamed.dgain, dgain64, f32_sums) == "");
      CHECK(first_difference(streamed.dbias, dbias64, f32_sums) == "");
    });
  }
}
