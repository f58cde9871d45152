// The recurrent walk as a kernel: in one piece or in chunks, keeping everything or nothing; and the functions that its cells are made of.

#include <atomic>
#include <cstring>
#include <limits>
#include <set>

#include "core/team.h"
#include "kernels/kernels.h"
#include "kernels/vectors.h"
#include "support/threads.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

// Units in the last place: the two take about five roundings that count.
constexpr double largest_error = 2.5;

template <class T>
double units(T value, long double expected) {
  int exponent = 0;
  std::frexp(static_cast<double>(expected), &exponent);
  const long double unit = std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
  return static_cast<double>(std::abs(static_cast<long double>(value) - expected) / unit);
}

/// Numbers of all magnitudes and both signs, every `stride`-th by their bits.
template <class T, class Bits>
std::vector<T> all_magnitudes(Bits stride, long double from, long double to) {
  std::vector<T> result;
  Bits bits = 0;
  const T least = static_cast<T>(from), most = static_cast<T>(to);
  Bits last = 0;
  std::memcpy(&bits, &least, sizeof bits);
  std::memcpy(&last, &most, sizeof last);
  for (; bits < last; bits += stride) {
    T x = 0;
    std::memcpy(&x, &bits, sizeof x);
    result.push_back(x);
    result.push_back(-x);
  }
  return result;
}

template <class T>
void check_accuracy(const std::vector<T>& x) {
  std::vector<T> y(x.size());
  const auto worst = [&](Unary op, auto&& expected) {
    CpuBackend::elementwise<T>().unary(op, static_cast<int64_t>(x.size()), x.data(), y.data(), 0);
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const long double e = expected(static_cast<long double>(x[i]));
      if (std::abs(e) >= static_cast<long double>(std::numeric_limits<T>::min()))
        largest = std::max(largest, units(y[i], e));
      else if (y[i] != 0)
        largest = HUGE_VAL;  // denormals are flushed
    }
    return largest;
  };
  CHECK(worst(Unary::tanh, [](long double v) { return std::tanh(v); }) <= largest_error);
  CHECK(worst(Unary::sigmoid, [](long double v) { return 1 / (1 + std::exp(-v)); }) <= largest_error);
}

template <class T>
void check_ends() {
  constexpr T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const std::vector<T> x{infinity, -infinity, nan, T(0), -T(0), std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest()};
  const auto n = static_cast<int64_t>(x.size());
  std::vector<T> t(x.size()), s(x.size());
  CpuBackend::elementwise<T>().unary(Unary::tanh, n, x.data(), t.data(), 0);
  CpuBackend::elementwise<T>().unary(Unary::sigmoid, n, x.data(), s.data(), 0);
  CHECK(t[0] == 1);
  CHECK(t[1] == -1);
  CHECK(std::isnan(t[2]));
  CHECK((t[3] == 0 && !std::signbit(t[3])));
  CHECK((t[4] == 0 && std::signbit(t[4])));
  CHECK(t[5] == 1);
  CHECK(t[6] == -1);
  CHECK(s[0] == 1);
  CHECK(s[1] == 0);
  CHECK(std::isnan(s[2]));
  CHECK(s[3] == T(0.5));
  CHECK(s[5] == 1);
  CHECK(s[6] == 0);
}

/// A layer-normalised LSTM's walk over 5 steps of up to 6 sequences, forward.
struct Walk {
  static constexpr int64_t hidden = 20, width = 4 * hidden, batch = 6;
  std::vector<int64_t> alive{6, 6, 4, 3, 1}, offset{0, 6, 12, 16, 19};
  std::vector<float> weight, gain_ih, gain_hh, bias, gain_c, bias_c, a_x;
  std::vector<float> h = std::vector<float>(batch * hidden, 0.0f), c = h, y = std::vector<float>(20 * hidden), raw_c = y;

  Walk() {
    const auto fill = [](std::vector<float>& v, int64_t n, double start) {
      for (int64_t i = 0; i < n; ++i) v.push_back(static_cast<float>(std::sin(start + 1.7 * static_cast<double>(i))));
    };
    fill(weight, width * hidden, 1), fill(gain_ih, width, 2), fill(gain_hh, width, 3), fill(bias, width, 4), fill(gain_c, hidden, 5),
        fill(bias_c, hidden, 6), fill(a_x, 20 * width, 7);
  }

  void run(const std::vector<int64_t>& cuts, bool keep) {
    const Packed<float> packed = CpuBackend::gemm<float>().pack(hidden, width, {weight.data(), hidden, true});
    std::vector<float> a_h(static_cast<size_t>((keep ? 20 : batch) * width)), statistics(static_cast<size_t>((keep ? 20 : batch) * 9)),
        gates(static_cast<size_t>(20 * width));
    RecurrentForward<float> work{};
    work.spec = {.norm = TermNorm::terms, .normalise_c = true, .hidden = hidden};
    work.parts = {bias.data(), nullptr, gain_ih.data(), gain_hh.data(), gain_c.data(), bias_c.data()};
    work.weight = &packed;
    work.from_zero = true;
    work.h = h.data(), work.c = c.data();
    std::vector<float> x = a_x;
    work.a_x = {x.data(), 0, false}, work.a_h = {a_h.data(), 0, !keep}, work.statistics = {statistics.data(), 0, !keep};
    work.gates = keep ? OverTime<float>{gates.data(), 0, false} : work.a_x;
    work.y = {y.data(), 0, false};
    if (keep) work.raw_c = {raw_c.data(), 0, false};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      work.steps = {offset.data(), alive.data(), cuts[i], cuts[i + 1], batch};
      CpuBackend::recurrent<float>().forward(work);
    }
  }
};

}  // namespace

TEST_CASE("tanh and sigmoid are good to 2.5 units in the last place over the whole line", "[kernels]") {
  check_accuracy(all_magnitudes<float, uint32_t>(4999, std::numeric_limits<float>::min(), 200));
  check_accuracy(all_magnitudes<float, uint32_t>(37, 0.01, 10));
  check_accuracy(all_magnitudes<double, uint64_t>(uint64_t{1} << 44, std::numeric_limits<double>::min(), 800));
  check_accuracy(all_magnitudes<double, uint64_t>((uint64_t{1} << 37) + 12345, 0.01, 40));
  check_ends<float>();
  check_ends<double>();
}

TEST_CASE("a recurrent walk gives the same bits in one piece, in chunks and without keeping anything", "[kernels]") {
  Walk whole;
  whole.run({0, 5}, true);
  CHECK(std::ranges::any_of(whole.y, [](float v) { return v > 0.1f; }));
  // The state holds each sequence's last h, and c.
  const std::vector<int64_t> last{4, 3, 3, 2, 1, 1};  // step
  for (int64_t n = 0; n < Walk::batch; ++n)
    for (int64_t k = 0; k < Walk::hidden; ++k) {
      const auto at = static_cast<size_t>((whole.offset[static_cast<size_t>(last[static_cast<size_t>(n)])] + n) * Walk::hidden + k);
      CHECK(whole.h[static_cast<size_t>(n * Walk::hidden + k)] == whole.y[at]);
      CHECK(whole.c[static_cast<size_t>(n * Walk::hidden + k)] == whole.raw_c[at]);
    }
  for (const bool keep : {true, false})
    for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{{0, 5}, {0, 1, 5}, {0, 2, 3, 5}, {0, 1, 2, 3, 4, 5}}) {
      Walk walk;
      walk.run(cuts, keep);
      CHECK(walk.y == whole.y);
      CHECK(walk.h == whole.h);
      CHECK(walk.c == whole.c);
    }
}

TEST_CASE("a team's members meet as often as they say", "[kernels]") {
  for (const int threads : {1, 2, 3, 5}) {
    const Threads guard(threads);
    std::atomic<int> arrived{0};
    std::atomic<bool> early{false};
    std::vector<int> seen(static_cast<size_t>(threads), 0);
    lamina::detail::parallel_team(threads, [&](const lamina::detail::Team& team) {
      ++seen[static_cast<size_t>(team.index())];
      for (int round = 1; round <= 50; ++round) {
        ++arrived;
        team.wait();
        if (arrived < round * team.size()) early = true;
        team.wait();
      }
    });
    CHECK(!early);
    CHECK(arrived % 50 == 0);
    CHECK(seen[0] == 1);
    for (const int count : seen) CHECK(count <= 1);
    int most = 0;
    lamina::detail::parallel_team(1, [&](const lamina::detail::Team& team) { most = team.size(); });
    CHECK(most == 1);
  }
}
