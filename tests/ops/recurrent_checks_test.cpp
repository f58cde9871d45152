// What the recurrent op accepts and refuses, what it keeps, and that threads do not change its bits.
#include <lamina/autograd/graph.h>
#include <lamina/core/memory.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/recurrent.h>
#include <lamina/ops/reduce.h>

#include "support/evaluate.h"
#include "support/recurrent_inputs.h"

using namespace lamina;
using namespace lamina::test;

namespace {

RecurrentResult run(const RecurrentCase& of, const RecurrentInputs& in, std::span<const int64_t> lengths = {}, bool reverse = false) {
  return recurrent(in["x"], in["h0"], in["c0"], in.parameters(), {.cell = of.cell, .norm = of.norm, .reverse = reverse}, lengths);
}

RecurrentCase case_of(const std::string& name) {
  for (const RecurrentCase& of : recurrent_cases())
    if (of.name == name) return of;
  FAIL(name);
  return {};
}

/// y + h + c of the inputs listed in `names` (with all others as they are), for check_thread_counts.
Function sum_of_outputs(const RecurrentCase& of, const RecurrentInputs& all, const std::vector<int64_t>& lengths, bool reverse) {
  return [=](const std::vector<Tensor>& v) {
    RecurrentInputs in = all;
    for (size_t i = 0; i < v.size(); ++i) in.tensors[i + 1] = v[i];  // all but x
    const RecurrentResult r = run(of, in, lengths, reverse);
    return r.c.defined() ? r.y + r.h * r.c : r.y + r.h;
  };
}

int64_t bytes_of(const RecurrentInputs& in, const std::vector<std::string>& but) {
  int64_t total = 0;
  for (size_t i = 0; i < in.names.size(); ++i)
    if (std::find(but.begin(), but.end(), in.names[i]) == but.end()) total += in.tensors[i].nbytes();
  return total;
}

}  // namespace

TEST_CASE("recurrent refuses what does not fit, naming it", "[ops][recurrent]") {
  const RecurrentSizes sizes{3, 2, 4, 5};
  const auto refused = [&](const std::string& name, const std::string& text, auto&& change) {
    const RecurrentCase of = case_of(name);
    RecurrentInputs in = recurrent_inputs(of, sizes, 1, DType::f32);
    Tensor x = in["x"], h0 = in["h0"], c0 = in["c0"];
    RecurrentParameters p = in.parameters();
    RecurrentOptions options{.cell = of.cell, .norm = of.norm};
    std::vector<int64_t> lengths;
    RecurrentStatistics statistics;
    change(x, h0, c0, p, options, lengths, statistics);
    INFO(text);
    CHECK_THROWS_WITH(recurrent(x, h0, c0, p, options, lengths, statistics), contains("[recurrent] " + text));
  };
#define REFUSED(name, text, ...)                                                                                                            \
  refused(name, text,                                                                                                                       \
          []([[maybe_unused]] Tensor& x, [[maybe_unused]] Tensor& h0, [[maybe_unused]] Tensor& c0, [[maybe_unused]] RecurrentParameters& p, \
             [[maybe_unused]] RecurrentOptions& options, [[maybe_unused]] std::vector<int64_t>& lengths,                                    \
             [[maybe_unused]] RecurrentStatistics& s) { __VA_ARGS__; })
  REFUSED("lstm none", "x: expected a tensor, got an undefined one", x = Tensor());
  REFUSED("lstm none", "x: expected [T, N, C], got [3, 8]", x = zeros({3, 8}));
  REFUSED("lstm none", "expected a tensor of f32 or f64, got i64", x = zeros({3, 2, 4}, DType::i64));
  REFUSED("lstm none", "weight_hh: expected a tensor, got an undefined one", p.weight_hh = Tensor());
  REFUSED("lstm none", "weight_hh: expected 2 axes, got [20]", p.weight_hh = zeros({20}));
  REFUSED("lstm none", "weight_hh: expected [4 H, H] (LSTM has 4 gates), got [15, 5]", p.weight_hh = zeros({15, 5}));
  REFUSED("rnn none", "weight_hh: expected [1 H, H] (RNN has 1 gate), got [20, 5]", p.weight_hh = zeros({20, 5}));
  REFUSED("gru none", "weight_ih: expected [15, 4], got [15, 3] (x is [3, 2, 4])", p.weight_ih = zeros({15, 3}));
  REFUSED("lstm none", "weight_ih: expected f32 as x, got f64", p.weight_ih = p.weight_ih.cast(DType::f64));
  REFUSED("lstm none", "bias_ih: expected [20], got [5] (x is [3, 2, 4])", p.bias_ih = zeros({5}));
  REFUSED("lstm none", "h0: expected [2, 5], got [1, 2, 5] (x is [3, 2, 4])", h0 = zeros({1, 2, 5}));
  REFUSED("lstm none", "c0: expected [2, 5], got [2, 4] (x is [3, 2, 4])", c0 = zeros({2, 4}));
  REFUSED("gru none", "c0: expected none, got [2, 5] (GRU has no cell state)", c0 = zeros({2, 5}));
  REFUSED("lstm none", "gain_ih: expected none, got [20] (norm none of LSTM has no such parameter)", p.gain_ih = ones({20}));
  REFUSED("lstm layer", "gain_hh: expected a tensor, got an undefined one (norm layer has it)", p.gain_hh = Tensor());
  REFUSED("lstm rms", "gain_c: expected a tensor, got an undefined one (norm rms has it)", p.gain_c = Tensor());
  REFUSED("gru layer", "gain_c: expected none, got [5] (norm layer of GRU has no such parameter)", p.gain_c = ones({5}));
  REFUSED("gru layer", "bias_c: expected none, got [5]", p.bias_c = ones({5}));
  REFUSED("lstm layer_gates", "gain_ih: expected none, got [20] (norm layer_gates of LSTM", p.gain_ih = ones({20}));
  REFUSED("lstm layer_cell", "gain_hh: expected none, got [20] (norm layer_cell of LSTM", p.gain_hh = ones({20}));
  REFUSED("lstm layer", "gain_ih: expected [20], got [10]", p.gain_ih = ones({10}));
  REFUSED("gru layer", "norm: expected none, layer, rms or batch, got layer_carry (a GRU has no cell state to normalise)",
          options.norm = RecurrentNorm::layer_carry);
  REFUSED("rnn layer", "norm: expected none, layer, rms or batch, got layer_cell (an RNN has", options.norm = RecurrentNorm::layer_cell);
  REFUSED("lstm layer", "eps: expected a number >= 0, got -1", options.eps = -1);
  REFUSED("lstm batch", "momentum: expected a number in [0, 1], got 2", options.momentum = 2);
  REFUSED("lstm none", "lengths: expected 2, one for each sequence, got 3 (x is [3, 2, 4])", lengths = {1, 2, 3});
  REFUSED("lstm none", "lengths: expected each in [0, 3], got 4 for sequence 1 (x is [3, 2, 4])", lengths = {1, 4});
  REFUSED("lstm none", "lengths: expected each in [0, 3], got -1 for sequence 0 (x is [3, 2, 4])", lengths = {-1, 3});
  REFUSED("lstm batch", "norm batch: expected at least 2 sequences at every step in training, got 1 at step 2", lengths = {3, 2});
  REFUSED("lstm batch", "mean_ih: expected running statistics [steps, G H], got an undefined tensor", options.training = false);
  REFUSED("lstm batch", "var_ih: expected running statistics [steps, G H], got an undefined tensor", s.mean_ih = zeros({3, 20}));
  REFUSED("lstm batch", "mean_ih: expected [steps, 20] with at least one step, got [0, 20]",
          s = recurrent_statistics(case_of("lstm batch"), 0, 5, DType::f32));
  REFUSED("lstm batch", "mean_c: expected [3, 5], got [2, 5]", s = recurrent_statistics(case_of("lstm batch"), 3, 5, DType::f32);
          s.mean_c = zeros({2, 5}));
  REFUSED("lstm layer", "mean_ih: expected none, got [3, 20] (norm layer of LSTM)", s.mean_ih = zeros({3, 20}));
  REFUSED("gru batch", "mean_c: expected none, got [3, 5] (norm batch of GRU)", s = recurrent_statistics(case_of("gru batch"), 3, 5, DType::f32);
          s.mean_c = zeros({3, 5}));
#undef REFUSED
}

TEST_CASE("recurrent: zero sizes, forward and backward", "[ops][recurrent]") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const RecurrentSizes& s : std::vector<RecurrentSizes>{{0, 2, 3, 4}, {2, 0, 3, 4}, {2, 2, 0, 4}, {2, 2, 3, 0}, {0, 0, 0, 0}})
      for (const bool with_lengths : {false, true}) {
        INFO(of.name << " T " << s.steps << " N " << s.batch << " C " << s.input << " H " << s.hidden << " lengths " << with_lengths);
        RecurrentInputs in = recurrent_inputs(of, s);
        for (Tensor& t : in.tensors) t = t.detach().set_requires_grad();
        const std::vector<int64_t> lengths(static_cast<size_t>(with_lengths ? s.batch : 0), 0);
        const RecurrentResult r = run(of, in, lengths);
        CHECK(r.y.shape() == Shape({s.steps, s.batch, s.hidden}));
        if (with_lengths) CHECK(norm_of(r.y) == 0);
        CHECK(r.h.shape() == Shape({s.batch, s.hidden}));
        recurrent_loss(r).backward();
        for (const Tensor& t : in.tensors) {
          REQUIRE(t.grad().defined());
          for (const double v : values(t.grad())) CHECK(std::isfinite(v));
        }
        // Without a step the parameters take no part.
        if (s.steps == 0 || with_lengths) CHECK(norm_of(in["weight_hh"].grad()) == 0);
        if (s.steps == 0) check_close(r.h, in["h0"], exact);
      }
}

TEST_CASE("recurrent keeps what its header says, y included", "[ops][recurrent]") {
  const RecurrentSizes s{6, 5, 3, 8};
  const auto kept = [&](const std::string& name, std::vector<int64_t> lengths = {}) {
    const RecurrentCase of = case_of(name);
    RecurrentInputs in = recurrent_inputs(of, s, 1, DType::f32);
    for (Tensor& t : in.tensors) t = t.detach().set_requires_grad();
    const int64_t before = autograd::saved_bytes();
    const RecurrentResult r = run(of, in, lengths);
    // b_ih and b_hh are needed again for gates that are made anew, and b_hh for a GRU's n inside its normaliser.
    const bool inside = of.cell == RecurrentCell::gru && of.norm != RecurrentNorm::none;
    const bool anew = device().is_cpu() && of.cell == RecurrentCell::lstm && of.norm != RecurrentNorm::none && of.norm != RecurrentNorm::layer_cell &&
                      of.norm != RecurrentNorm::batch;
    const std::vector<std::string> not_kept = anew     ? std::vector<std::string>{}
                                              : inside ? std::vector<std::string>{"bias_ih"}
                                                       : std::vector<std::string>{"bias_ih", "bias_hh"};
    return autograd::saved_bytes() - before - bytes_of(in, not_kept);
  };
  const int64_t rows = s.steps * s.batch, hidden = s.hidden * 4;  // bytes
  const int64_t gates = device().is_cpu() ? 0 : 4 * hidden;       // on a CPU these are made anew where there are normalised summed inputs
  CHECK(kept("lstm none") == rows * 6 * hidden);
  CHECK(kept("lstm layer") == rows * (10 * hidden + gates + 9 * 4));
  CHECK(kept("lstm rms") == rows * (10 * hidden + gates + 9 * 4));
  CHECK(kept("lstm layer_cell") == rows * (6 * hidden + 3 * 4));
  CHECK(kept("lstm layer_gates") == rows * (6 * hidden + gates + 15 * 4));
  CHECK(kept("gru none") == rows * 5 * hidden);
  CHECK(kept("rnn none") == rows * hidden);
  // With lengths only steps that there are.
  CHECK(kept("lstm none", {6, 1, 0, 2, 3}) == (12 * 6 + 1) * hidden);  // one more row: what padding is made from
}

// [cpu]: on a GPU these are more steps, so that its products are large.
TEST_CASE("recurrent without gradients keeps some steps at a time", "[ops][recurrent][cpu]") {
  const RecurrentSizes s{4096, 2, 3, 16};
  const int64_t y = s.steps * s.batch * s.hidden * 4;
  for (const std::string name : {"lstm none", "lstm layer", "gru layer", "rnn none"}) {
    const RecurrentCase of = case_of(name);
    const RecurrentInputs in = recurrent_inputs(of, s, 1, DType::f32);
    reset_peak_memory(device());
    const int64_t before = memory_stats(device()).current_bytes;
    const RecurrentResult r = run(of, in);
    INFO(name);
    CHECK(memory_stats(device()).peak_bytes - before < 2 * y);  // the gates of all steps would be 3 y at least
    CHECK(r.y.numel() * 4 == y);
  }
}

TEST_CASE("recurrent runs backward twice over a kept graph, and refuses a changed one", "[ops][recurrent]") {
  for (const RecurrentCase& of : recurrent_cases()) {
    INFO(of.name);
    RecurrentInputs in = recurrent_inputs(of, {4, 3, 3, 6});
    for (Tensor& t : in.tensors) t = t.detach().set_requires_grad();
    const RecurrentResult r = run(of, in, std::vector<int64_t>{4, 4, 2});
    const Tensor loss = recurrent_loss(r);
    loss.backward({}, true);
    std::vector<Tensor> first;
    for (const Tensor& t : in.tensors) first.push_back(t.grad().clone());
    loss.backward({}, true);
    for (size_t i = 0; i < first.size(); ++i) check_close(in.tensors[i].grad(), first[i] * 2.0, f64_rounding);
    Tensor weight = in["weight_hh"].detach();
    set_element(weight, 0, element(weight, 0) + 1);
    CHECK_THROWS_WITH(loss.backward(), contains("changed"));
  }
}

TEST_CASE("recurrent gives only the gradients that are wanted", "[ops][recurrent]") {
  for (const RecurrentCase& of : recurrent_cases()) {
    const RecurrentInputs in = recurrent_inputs(of, {4, 3, 3, 6});
    RecurrentInputs all = in.leaves(DType::f64);
    recurrent_loss(run(of, all)).backward();
    for (size_t i = 0; i < in.names.size(); ++i) {
      INFO(of.name << ", only " << in.names[i]);
      RecurrentInputs one = in;
      one.tensors[i] = in.tensors[i].clone().set_requires_grad();
      recurrent_loss(run(of, one)).backward();
      check_close(one.tensors[i].grad(), all.tensors[i].grad(), exact);
    }
  }
}

TEST_CASE("recurrent: the same bits with 1, 2, 3 and 8 threads", "[ops][recurrent]") {
  std::vector<int64_t> many_lengths;  // 50 sequences alive at the second step, 25 at the third
  for (int64_t i = 0; i < 75; ++i) many_lengths.push_back(1 + i % 3);
  // x needs no gradient and products are wide enough to be lamina's own. Few sequences share their products by columns, many are shared out.
  for (const RecurrentCase& of : recurrent_cases())
    for (const auto& [sizes, lengths] : std::vector<std::pair<RecurrentSizes, std::vector<int64_t>>>{
             {{5, 9, 30, 140}, {}}, {{3, 70, 33, 130}, {}}, {{4, 10, 30, 140}, {4, 0, 3, 4, 4, 2, 1, 4, 2, 3}}, {{3, 75, 33, 70}, many_lengths}}) {
      if (of.norm == RecurrentNorm::batch && !lengths.empty()) continue;
      INFO(of.name << ", N " << sizes.batch << (lengths.empty() ? "" : ", lengths"));
      const RecurrentInputs in = recurrent_inputs(of, sizes, 3, DType::f32);
      check_thread_counts(sum_of_outputs(of, in, lengths, sizes.batch == 9), {in.tensors.begin() + 1, in.tensors.end()});
    }
}

TEST_CASE("recurrent: rows of huge, tiny and equal values normalise as anywhere else", "[ops][recurrent]") {
  const RecurrentCase of = case_of("lstm layer");
  for (const double scale : {1e25, 1e-25, 0.0}) {
    INFO(scale);
    RecurrentInputs in = recurrent_inputs(of, {3, 4, 3, 20}, 1, DType::f32, true, false);
    const auto scaled = [&](Tensor& t) { t = (t * scale).detach(); };
    RecurrentInputs large = in;
    for (size_t i = 0; i < in.names.size(); ++i)
      if (in.names[i] == "x") scaled(large.tensors[i]);
    // eps = 0: LN(a x) = LN(x), but for x = 0, which is LN = 0: gains of zero give the same.
    const RecurrentOptions options{.norm = RecurrentNorm::layer, .eps = 0};
    const Tensor y = recurrent(large["x"], large["h0"], large["c0"], large.parameters(), options).y;
    RecurrentParameters p = in.parameters();
    if (scale == 0.0) p.gain_ih = zeros(p.gain_ih.shape());
    check_close(y, recurrent(in["x"], in["h0"], in["c0"], p, options).y, f32_sum);
  }
  // A NaN stays with its sequence, from its step on.
  RecurrentInputs in = recurrent_inputs(of, {3, 4, 3, 20}, 1, DType::f32);
  set_element(in.tensors[0], (1 * 4 + 2) * 3, NAN);
  const auto y = values(run(of, in).y);
  for (size_t t = 0; t < 3; ++t)
    for (size_t n = 0; n < 4; ++n)
      for (size_t k = 0; k < 20; ++k) CHECK(std::isnan(y[(t * 4 + n) * 20 + k]) == (n == 2 && t >= 1));
}
