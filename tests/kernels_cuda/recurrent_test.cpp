// Recurrent walks on CUDA against the CPU's, which the tests of ops hold against the definition.

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "kernels/kernels.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {
// f32 against the CPU in double: a dozen roundings a step over some steps, which normalisers of few columns pass on enlarged.
constexpr double f32_tolerance = 3e-4;
constexpr double f64_tolerance = 1e-9;    // the same against another order of sums; columns alike in all sequences enlarge it 300 times
constexpr double same_type = 2e-3;        // f32 against the CPU in f32 where inputs have lost digits already
constexpr double largest_nothing = 1e-3;  // a gradient that is no larger was not tested
struct Kind {
  const char* name;
  RecurrentSpec spec;
};

std::vector<Kind> all_kinds() {
  using C = Cell;
  using N = TermNorm;
  return {{"lstm", {.cell = C::lstm}},
          {"lstm, K", {.cell = C::lstm, .normalise_c = true}},
          {"lstm, K carried", {.cell = C::lstm, .normalise_c = true, .carry = true}},
          {"lstm terms, K", {.cell = C::lstm, .norm = N::terms, .normalise_c = true}},
          {"lstm terms, K carried", {.cell = C::lstm, .norm = N::terms, .normalise_c = true, .carry = true}},
          {"lstm terms, K, no mean", {.cell = C::lstm, .norm = N::terms, .normalise_c = true, .centre = false}},
          {"lstm gates, K carried", {.cell = C::lstm, .norm = N::gates, .normalise_c = true, .carry = true}},
          {"lstm columns", {.cell = C::lstm, .norm = N::columns, .normalise_c = true}},
          {"lstm columns, given", {.cell = C::lstm, .norm = N::columns, .normalise_c = true, .given = true}},
          {"gru", {.cell = C::gru}},
          {"gru terms", {.cell = C::gru, .norm = N::terms}},
          {"gru terms, no mean", {.cell = C::gru, .norm = N::terms, .centre = false}},
          {"gru columns", {.cell = C::gru, .norm = N::columns}},
          {"gru columns, given", {.cell = C::gru, .norm = N::columns, .given = true}},
          {"rnn", {.cell = C::rnn}},
          {"rnn terms", {.cell = C::rnn, .norm = N::terms}},
          {"rnn terms, no mean", {.cell = C::rnn, .norm = N::terms, .centre = false}},
          {"rnn columns", {.cell = C::rnn, .norm = N::columns}},
          {"rnn columns, given", {.cell = C::rnn, .norm = N::columns, .given = true}}};
}

/// Sequences and steps.
struct Walk {
  std::vector<int64_t> offset, alive;
  int64_t rows = 0;

  /// Rows stand in the order of the steps, or the other way about.
  explicit Walk(std::vector<int64_t> alive_at, bool reverse = false) : alive(std::move(alive_at)) {
    rows = std::accumulate(alive.begin(), alive.end(), int64_t{0});
    int64_t before = 0;
    for (const int64_t count : alive) {
      offset.push_back(reverse ? rows - before - count : before);
      before += count;
    }
  }
  int64_t batch() const { return alive.front(); }
  int64_t count() const { return static_cast<int64_t>(alive.size()); }
};

template <class T>
struct Problem {
  RecurrentSpec spec;
  Walk walk;
  std::vector<T> weight, bias, bias_h, gain_ih, gain_hh, gain_c, bias_c, a_x, h, c, dy, dh, dc, sums;
  std::vector<T> mean_x, rstd_x, mean_h, rstd_h, mean_c, rstd_c;  // given

  template <class U>
  Problem<U> as() const {
    const auto cast = [](const std::vector<T>& v) { return std::vector<U>(v.begin(), v.end()); };
    return {spec,         walk,         cast(weight), cast(bias),   cast(bias_h), cast(gain_ih), cast(gain_hh), cast(gain_c),
            cast(bias_c), cast(a_x),    cast(h),      cast(c),      cast(dy),     cast(dh),      cast(dc),      cast(sums),
            cast(mean_x), cast(rstd_x), cast(mean_h), cast(rstd_h), cast(mean_c), cast(rstd_c)};
  }
};

template <class T>
Problem<T> problem_of(RecurrentSpec spec, int64_t hidden, const Walk& walk, double offset = 0) {
  spec.hidden = hidden;
  const int64_t width = spec.width(), states = walk.batch() * hidden, gru_from = 2 * hidden;
  const bool gru = spec.cell == Cell::gru, plain = spec.norm == TermNorm::none, given = spec.given;
  uint64_t seed = static_cast<uint64_t>(hidden);
  const auto make = [&](bool present, int64_t n, double mean, double sd) { return normal_vector<T>(present ? n : 0, ++seed, mean, sd); };
  const auto positive = [&](bool present, int64_t n) {
    std::vector<T> v = make(present, n, 0, 0.3);
    for (T& value : v) value = T(1) + std::abs(value);
    return v;
  };
  Problem<T> p{spec, walk, make(true, width * hidden, 0, 0.8 / std::sqrt(static_cast<double>(hidden))),
               {},   {},   {},
               {},   {},   {},
               {},   {},   {},
               {},   {},   {},
               {},   {},   {},
               {},   {},   {},
               {}};
  p.bias = make(!plain, width, 0, 0.3);
  p.bias_h = make(gru, width, 0, 0.3);
  for (int64_t i = 0; gru && i < gru_from; ++i) p.bias_h[static_cast<size_t>(i)] = 0;  // it is n's alone
  p.gain_ih = make(spec.norm == TermNorm::terms || spec.norm == TermNorm::columns, width, 0.8, 0.3);
  p.gain_hh = make(!plain, width, 0.8, 0.3);
  p.gain_c = make(spec.normalise_c, hidden, 0.8, 0.3), p.bias_c = make(spec.normalise_c, hidden, 0, 0.3);
  p.a_x = make(true, walk.rows * width, offset, 1);
  p.h = make(true, states, 0, 0.5), p.c = make(spec.cell == Cell::lstm, states, 0, 0.7);
  p.dy = make(true, walk.rows * hidden, 0, 1);
  p.dh = make(true, states, 0, 1), p.dc = make(spec.cell == Cell::lstm, states, 0, 1);
  p.sums = make(true, RecurrentSums(spec).count, 0, 1);
  p.mean_x = make(given, walk.count() * width, 0, 0.2), p.rstd_x = positive(given, walk.count() * width);
  p.mean_h = make(given, walk.count() * width, 0, 0.2), p.rstd_h = positive(given, walk.count() * width);
  const bool c_given = given && spec.cell == Cell::lstm;
  p.mean_c = make(c_given, walk.count() * hidden, 0, 0.2), p.rstd_c = positive(c_given, walk.count() * hidden);
  return p;
}

/// The arrays of a run, on the host or on the device, `shift` elements past an aligned place.
template <class T>
class Arrays {
 public:
  Arrays(bool device, size_t shift) : device_(device), shift_(shift) {}
  T* from(const std::vector<T>& values) {
    if (values.empty()) return nullptr;
    if (!device_) return host_.emplace_back(values).data();
    return on_device_.emplace_back(std::make_unique<DeviceArray<T>>(values, shift_))->data();
  }
  T* room(int64_t n) {
    if (n == 0) return nullptr;
    if (!device_) return host_.emplace_back(static_cast<size_t>(n), std::numeric_limits<T>::quiet_NaN()).data();
    return on_device_.emplace_back(std::make_unique<DeviceArray<T>>(static_cast<size_t>(n), shift_))->data();
  }
  std::vector<T> read(const T* p) const {
    for (const std::vector<T>& v : host_)
      if (v.data() == p) return v;
    for (const auto& array : on_device_)
      if (array->data() == p) return array->host();
    return {};
  }

 private:
  bool device_;
  size_t shift_;
  std::deque<std::vector<T>> host_;
  std::deque<std::unique_ptr<DeviceArray<T>>> on_device_;
};

struct How {
  bool device = true;
  std::vector<int64_t> cuts = {};  // between chunks of steps
  bool keep = true, from_zero = false, to_start = true, sums = true;
  size_t shift = 0;
};

template <class T>
using Results = std::map<std::string, std::vector<T>>;

template <class T>
class Run {
 public:
  Run(const Problem<T>& problem, How how)
      : p_(problem), how_(std::move(how)), spec_(problem.spec), walk_(problem.walk), arrays_(how_.device, how_.shift), width_(spec_.width()) {
    how_.cuts.insert(how_.cuts.begin(), 0);
    how_.cuts.push_back(walk_.count());
    parts_ = {arrays_.from(p_.bias),    arrays_.from(p_.bias_h), arrays_.from(p_.gain_ih),
              arrays_.from(p_.gain_hh), arrays_.from(p_.gain_c), arrays_.from(p_.bias_c)};
    const bool lstm = spec_.cell == Cell::lstm;
    if (spec_.norm != TermNorm::columns) return;
    x_columns_ = columns(p_.mean_x, p_.rstd_x, width_), h_columns_ = columns(p_.mean_h, p_.rstd_h, width_);
    if (lstm) c_columns_ = columns(p_.mean_c, p_.rstd_c, spec_.hidden);
  }

  Results<T> operator()() {
    forward();
    if (how_.keep) backward();
    return results_;
  }

 private:
  const RecurrentKernels<T>& kernels() const { return how_.device ? CudaBackend::recurrent<T>() : CpuBackend::recurrent<T>(); }
  const GemmKernels<T>& gemm() const { return how_.device ? CudaBackend::gemm<T>() : CpuBackend::gemm<T>(); }
  Steps steps(size_t chunk) const { return {walk_.offset.data(), walk_.alive.data(), how_.cuts[chunk], how_.cuts[chunk + 1], walk_.batch()}; }
  OverTime<T> whole(int64_t width) { return {arrays_.room(walk_.rows * width), 0, false}; }
  OverTime<T> kept(int64_t width) { return how_.keep ? whole(width) : OverTime<T>{arrays_.room(walk_.batch() * width), 0, true}; }
  ColumnStatistics<T> columns(const std::vector<T>& mean, const std::vector<T>& rstd, int64_t width) {
    if (spec_.given) return {arrays_.from(mean), nullptr, nullptr, arrays_.from(rstd)};
    const auto room = [&] { return arrays_.room(walk_.count() * width); };
    return {room(), room(), room(), room()};
  }
  void give(const char* name, const T* p) { results_[name] = arrays_.read(p); }

  void forward() {
    const int64_t hidden = spec_.hidden;
    const bool lstm = spec_.cell == Cell::lstm, rnn = spec_.cell == Cell::rnn;
    const T* const weight = arrays_.from(p_.weight);
    const Packed<T> packed = gemm().pack(hidden, width_, {weight, hidden, true});
    RecurrentForward<T>& w = forward_;
    w.spec = spec_, w.parts = parts_, w.weight = &packed, w.from_zero = how_.from_zero;
    w.h = arrays_.from(how_.from_zero ? std::vector<T>(p_.h.size()) : p_.h);
    if (lstm) w.c = arrays_.from(p_.c);
    w.a_x = {arrays_.from(p_.a_x), 0, false};
    if (!spec_.sums_terms()) w.a_h = kept(width_);
    // The gates take the place of a_x where backward does not want it.
    if (!rnn) w.gates = how_.keep && spec_.norm != TermNorm::none ? whole(width_) : w.a_x;
    if (lstm && how_.keep) w.raw_c = whole(hidden);
    if (spec_.cell == Cell::gru && how_.keep) w.n_term = whole(hidden);
    if (spec_.statistics() > 0) w.statistics = kept(spec_.statistics());
    w.y = whole(hidden);
    w.x_columns = x_columns_, w.h_columns = h_columns_, w.c_columns = c_columns_;
    for (size_t chunk = 0; chunk + 1 < how_.cuts.size(); ++chunk) {
      w.steps = steps(chunk);
      kernels().forward(w);
    }
    give("y", w.y.data), give("h", w.h), give("c", w.c);
    if (!how_.keep) return;
    if (!spec_.makes_gates_anew()) give("gates", w.gates.data);  // else the CPU has none
    give("raw_c", w.raw_c.data), give("n_term", w.n_term.data), give("statistics", w.statistics.data);
    for (const auto& [name, at] : {std::pair{"x", &x_columns_}, std::pair{"h", &h_columns_}, std::pair{"c", &c_columns_}}) {
      const std::string of = name;
      give((of + " mean").c_str(), at->mean), give((of + " shift").c_str(), at->shift);
      give((of + " var").c_str(), at->var), give((of + " rstd").c_str(), at->rstd);
    }
  }

  void backward() {
    const int64_t hidden = spec_.hidden;
    const RecurrentForward<T>& f = forward_;
    const T* const weight = arrays_.from(p_.weight);
    const Packed<T> packed = gemm().pack(width_, hidden, {weight, hidden, false});
    const auto left = [](const OverTime<T>& array) { return OverTime<const T>{array.data, array.origin, array.rolling}; };
    const auto of = [](const ColumnStatistics<T>& c) { return ColumnStatistics<const T>{c.mean, c.shift, nullptr, c.rstd}; };
    RecurrentBackward<T> w{};
    w.spec = spec_, w.parts = parts_, w.weight = &packed, w.to_start = how_.to_start;
    w.h0 = arrays_.from(how_.from_zero ? std::vector<T>(p_.h.size()) : p_.h), w.c0 = arrays_.from(p_.c);
    w.a_x = left(f.a_x), w.a_h = left(f.a_h), w.gates = left(f.gates), w.raw_c = left(f.raw_c), w.y = left(f.y), w.n_term = left(f.n_term);
    w.statistics = left(f.statistics);
    w.x_columns = of(x_columns_), w.h_columns = of(h_columns_), w.c_columns = of(c_columns_);
    w.dy = {arrays_.from(p_.dy), 0, false};
    w.dh = arrays_.from(p_.dh), w.dc = arrays_.from(p_.dc);
    if (how_.sums) w.sums = arrays_.from(p_.sums);
    std::vector<T> da_x(static_cast<size_t>(walk_.rows * width_)), da_h(spec_.one_gradient() ? 0 : da_x.size());
    for (size_t chunk = how_.cuts.size() - 1; chunk-- > 0;) {
      w.steps = steps(chunk);
      int64_t begin = walk_.rows, count = 0;
      for (int64_t step = w.steps.first; step < w.steps.last; ++step) {
        begin = std::min(begin, walk_.offset[static_cast<size_t>(step)]);
        count += walk_.alive[static_cast<size_t>(step)];
      }
      w.da_x = {arrays_.room(count * width_), begin, false};
      if (!spec_.one_gradient()) w.da_h = {arrays_.room(count * width_), begin, false};
      kernels().backward(w);
      std::ranges::copy(arrays_.read(w.da_x.data), da_x.begin() + begin * width_);
      if (!spec_.one_gradient()) std::ranges::copy(arrays_.read(w.da_h.data), da_h.begin() + begin * width_);
    }
    results_["da_x"] = da_x, results_["da_h"] = da_h;
    if (how_.to_start) give("dh", w.dh);
    give("dc", w.dc);
    if (how_.sums) give("sums", w.sums);
  }

  const Problem<T>& p_;
  How how_;
  const RecurrentSpec& spec_;
  const Walk& walk_;
  Arrays<T> arrays_;
  int64_t width_;
  RecurrentParts<T> parts_;
  ColumnStatistics<T> x_columns_, h_columns_, c_columns_;
  RecurrentForward<T> forward_{};
  Results<T> results_;
};

template <class T>
Results<T> run(const Problem<T>& problem, const How& how) {
  return Run<T>(problem, how)();
}

template <class A, class B>
void check_equal(const Results<A>& have, const Results<B>& expected, double tolerance) {
  REQUIRE(have.size() == expected.size());
  for (const auto& [name, values] : expected) {
    INFO(name);
    REQUIRE(first_difference(have.at(name), values, tolerance) == "");
  }
}

How on_cpu(How how) {
  how.device = false;
  how.shift = 0;
  return how;
}

/// The device in T against the CPU in double.
template <class T>
void check_against_cpu(const Problem<T>& problem, const How& how = {}) {
  const Results<T> have = run(problem, how);
  check_equal(have, run(problem.template as<double>(), on_cpu(how)), sizeof(T) == 4 ? f32_tolerance : f64_tolerance);
  if (!how.keep || problem.spec.hidden < 3) return;
  for (const char* gradient : {"da_x", "da_h", "dh", "dc"})
    if (have.contains(gradient) && !have.at(gradient).empty()) REQUIRE(largest_magnitude(have.at(gradient)) > largest_nothing);
  if (how.sums) REQUIRE(first_difference(have.at("sums"), problem.sums, largest_nothing) != "");
}

const Walk ragged({7, 7, 6, 4, 4});

}  // namespace

TEST_CASE("cuda recurrent: every cell and normaliser, of all widths") {
  for (const Kind& kind : all_kinds())
    for (const int64_t hidden : {1, 3, 33, 64}) {
      INFO(kind.name << ", H " << hidden);
      check_against_cpu(problem_of<double>(kind.spec, hidden, ragged));
      // Normalised rows of one or two columns are +-1 whatever the rounding, but their gradients are all rounding.
      if (hidden >= 33) check_against_cpu(problem_of<float>(kind.spec, hidden, ragged));
    }
}

TEST_CASE("cuda recurrent: rows of several warps, and too long to be held") {
  for (const Kind& kind : all_kinds()) {
    INFO(kind.name);
    check_against_cpu(problem_of<float>(kind.spec, 257, Walk({5, 4})));
    const bool bound = kind.spec.norm != TermNorm::columns && (kind.spec.norm != TermNorm::none || kind.spec.normalise_c);
    if (!bound) continue;
    check_against_cpu(problem_of<double>(kind.spec, 1026, Walk({2, 1})));  // 2 packs for a thread
    if (kind.spec.cell == Cell::rnn) check_against_cpu(problem_of<double>(kind.spec, 1025, Walk({2, 1})));
  }
}

TEST_CASE("cuda recurrent: more sequences than a block has threads for them; all steps alike; backwards") {
  for (const Kind& kind : all_kinds()) {
    INFO(kind.name);
    check_against_cpu(problem_of<float>(kind.spec, 9, Walk({70, 67})));
    check_against_cpu(problem_of<double>(kind.spec, 8, Walk({7, 7, 7}, true)));
    check_against_cpu(problem_of<double>(kind.spec, 12, Walk({5, 5, 4}, true)));
  }
}

TEST_CASE("cuda recurrent: from zero, not to the start, without sums, unaligned") {
  for (const Kind& kind : all_kinds()) {
    INFO(kind.name);
    const Problem<double> problem = problem_of<double>(kind.spec, 36, ragged);
    check_against_cpu(problem, {.from_zero = true});
    check_against_cpu(problem, {.to_start = false});
    check_against_cpu(problem, {.sums = false});
    check_against_cpu(problem, {.shift = 1});
  }
}

TEST_CASE("cuda recurrent: the same bits again, in chunks, and without keeping anything") {
  for (const Kind& kind : all_kinds()) {
    INFO(kind.name);
    const Problem<float> problem = problem_of<float>(kind.spec, 36, ragged);
    const Results<float> whole = run(problem, {});
    check_equal(run(problem, {}), whole, 0);
    const Results<float> chunks = run(problem, {.cuts = {1, 3}});
    for (const auto& [name, values] : whole) {
      INFO(name);  // sums are taken chunk by chunk
      REQUIRE(first_difference(chunks.at(name), values, name == "sums" ? f32_tolerance : 0) == "");
    }
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{}, {2}, {1, 2, 3, 4}})
      for (const auto& [name, values] : run(problem, {.cuts = cuts, .keep = false})) {
        INFO(name);
        REQUIRE(first_difference(values, whole.at(name), 0) == "");
      }
  }
}

TEST_CASE("cuda recurrent: large offsets, squares beyond f32, a sequence that is not finite") {
  for (const Kind& kind : all_kinds()) {
    if (kind.spec.norm == TermNorm::none || kind.spec.given) continue;
    INFO(kind.name);
    // Every deviation of 1 at an offset of 3000 has lost 2^-13 / 2 of itself.
    const Problem<float> far = problem_of<float>(kind.spec, 36, ragged, 3000);
    check_equal(run(far, {}), run(far, on_cpu({})), same_type);
    Problem<float> huge = problem_of<float>(kind.spec, 36, ragged);
    for (float& value : huge.a_x) value *= 1e25f;
    const Results<float> have = run(huge, {}), expected = run(huge, on_cpu({}));
    for (const char* name : {"y", "h", "c", "da_h"}) {
      INFO(name);
      REQUIRE(first_difference(have.at(name), expected.at(name), same_type) == "");
    }
    if (kind.spec.norm == TermNorm::columns) continue;
    Problem<float> spoilt = problem_of<float>(kind.spec, 36, ragged);
    const Results<float> before = run(spoilt, {.keep = false});
    spoilt.a_x[static_cast<size_t>(spoilt.spec.width() + 3)] = std::numeric_limits<float>::infinity();  // step 0, sequence 1
    const Results<float> after = run(spoilt, {.keep = false});
    for (int64_t sequence = 0; sequence < ragged.batch(); ++sequence)
      for (int64_t k = 0; k < 36; ++k) {
        const auto at = static_cast<size_t>(sequence * 36 + k);
        if (sequence == 1)
          REQUIRE(std::isnan(after.at("h")[at]));
        else
          REQUIRE(after.at("h")[at] == before.at("h")[at]);
      }
  }
}

TEST_CASE("cuda recurrent: nothing to do") {
  RecurrentForward<float> forward{};
  RecurrentBackward<float> backward{};
  forward.spec.hidden = backward.spec.hidden = 4;
  CHECK_NOTHROW(CudaBackend::recurrent<float>().forward(forward));
  CHECK_NOTHROW(CudaBackend::recurrent<float>().backward(backward));
  const std::vector<int64_t> offset{0}, alive{2};
  forward.steps = backward.steps = {offset.data(), alive.data(), 0, 1, 2};
  forward.spec.hidden = backward.spec.hidden = 0;
  CHECK_NOTHROW(CudaBackend::recurrent<float>().forward(forward));
  CHECK_NOTHROW(CudaBackend::recurrent<float>().backward(backward));
}

TEST_CASE("cuda recurrent: running statistics move step by step, past the last row in turn") {
  const std::vector<int64_t> alive{7, 7, 6, 6, 6, 2};
  const int64_t width = 300, steps = 6;
  for (const int64_t rows : {1, 3, 6, 9}) {
    INFO("rows " << rows);
    std::vector<float> batch_mean = normal_vector<float>(steps * width, 1), batch_var = normal_vector<float>(steps * width, 2, 3, 0.3);
    batch_var[static_cast<size_t>(1 * width + 299)] = std::numeric_limits<float>::infinity();  // step 1 is left out,
    batch_mean[static_cast<size_t>(4 * width)] = std::numeric_limits<float>::quiet_NaN();      // and step 4
    const std::vector<float> mean = normal_vector<float>(rows * width, 3), var = normal_vector<float>(rows * width, 4, 2, 0.3);
    const auto moved = [&](bool device) {
      Arrays<float> arrays(device, 0);
      const RunningColumns<float> work{.steps = {nullptr, alive.data(), 0, steps, 7},
                                       .width = width,
                                       .rows = rows,
                                       .momentum = 0.3,
                                       .batch_mean = arrays.from(batch_mean),
                                       .batch_var = arrays.from(batch_var),
                                       .mean = arrays.from(mean),
                                       .var = arrays.from(var)};
      (device ? CudaBackend::recurrent<float>() : CpuBackend::recurrent<float>()).move_running(work);
      return Results<float>{{"mean", arrays.read(work.mean)}, {"var", arrays.read(work.var)}};
    };
    const Results<float> have = moved(true);
    check_equal(have, moved(false), 1e-6);  // one rounding of f32 a step
    for (const auto& [name, values] : have)
      for (const float value : values) REQUIRE(std::isfinite(value));
    // By hand, where each step has its row: column 7 of row 2, which step 2 moves by 0.3.
    if (rows < 6) continue;
    const size_t at = 2 * 300 + 7;
    CHECK(std::abs(have.at("mean")[at] - (0.7f * mean[at] + 0.3f * batch_mean[at])) < 1e-6f);
    CHECK(std::abs(have.at("var")[at] - (0.7f * var[at] + 0.3f * batch_var[at] * 6 / 5)) < 1e-6f);
    CHECK(have.at("mean")[300 + 7] == mean[300 + 7]);
  }
}
