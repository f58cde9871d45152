// The ways through the recurrent op that its results must not depend on: recording or not, which gradients are wanted, threads, sizes; and its edges.
#include <lamina/ops/elementwise.h>
#include <lamina/ops/recurrent.h>
#include <lamina/ops/reduce.h>

#include "support/catch.h"
#include "support/recurrent_compare.h"
#include "support/threads.h"

using namespace lamina;
using namespace lamina::test;

namespace {

/// Sizes that make the op share rows, share columns, and take several runs of steps.
// The last two multiply for the weights' gradients within the backward walk, with lengths too: two steps at a time, and one.
std::vector<RecurrentSizes> several_sizes() { return {{5, 4, 3, 7}, {3, 40, 5, 64}, {2, 4, 6, 200}, {31, 128, 2, 3}, {31, 270, 2, 3}}; }

RecurrentResult forward(const RecurrentCase& of, const RecurrentInputs& in, const Setting& s) {
  return recurrent(in["x"], in["h0"], in["c0"], in.parameters(), s.options, s.lengths,
                   recurrent_statistics(of, std::max<int64_t>(1, in["x"].size(0)), in["weight_hh"].size(1), in["x"].dtype()));
}

}  // namespace

TEST_CASE("recurrent: the same bits whether the graph records or not", "[large]") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const RecurrentSizes& sizes : several_sizes())
      for (const bool reverse : {false, true})
        for (const bool with_lengths : {false, true}) {
          const Setting setting{
              {.cell = of.cell, .norm = of.norm, .reverse = reverse}, with_lengths ? some_lengths(sizes) : std::vector<int64_t>{}, 0};
          const RecurrentInputs inputs = recurrent_inputs(of, sizes, 20, DType::f32);
          INFO(of.name << ", " << text(sizes) << (reverse ? ", reverse" : "") << (with_lengths ? ", lengths" : ""));
          const RecurrentResult recorded = forward(of, inputs.leaves(DType::f32), setting), plain = forward(of, inputs, setting);
          CHECK(recorded.y.requires_grad());
          CHECK_FALSE(plain.y.requires_grad());
          CHECK(same_bits(recorded.y, plain.y));
          CHECK(same_bits(recorded.h, plain.h));
          if (plain.c.defined()) CHECK(same_bits(recorded.c, plain.c));
        }
}

// Where the only input is 1, the weights' gradient, a product, is the bias's, a sum over rows that is added up now and then.
TEST_CASE("recurrent: sums over a long sequence in several runs of steps") {
  constexpr double tolerance = 1e-11;  // f64, thousands of terms
  constexpr int64_t hidden = 3;
  // The last one is so long that the products within the backward walk come in runs, too.
  for (const auto& [batch, time] : std::vector<std::pair<int64_t, int64_t>>{{2, 1200}, {70, 34}, {70, 300}}) {
    RecurrentParameters p{.weight_ih = normal({4 * hidden, 1}, 1, DType::f64),
                          .weight_hh = normal({4 * hidden, hidden}, 2, DType::f64),
                          .bias_ih = normal({4 * hidden}, 3, DType::f64)};
    p.weight_ih.set_requires_grad(true);
    p.bias_ih.set_requires_grad(true);
    const Tensor y = recurrent(ones({time, batch, 1}, DType::f64), Tensor(), Tensor(), p, {}).y;
    sum(y * normal({time, batch, hidden}, 4, DType::f64)).backward();
    const std::vector<double> by_product = p.weight_ih.grad().to_vector<double>(), by_sum = p.bias_ih.grad().to_vector<double>();
    for (size_t i = 0; i < by_sum.size(); ++i) {
      CHECK(std::abs(by_sum[i]) > tolerance);
      CHECK(std::abs(by_sum[i] - by_product[i]) <= tolerance * std::max(1.0, std::abs(by_sum[i])));
    }
  }
}

// [cpu]: a GPU has no thread count.
TEST_CASE("recurrent: any number of threads", "[cpu]") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const RecurrentSizes& sizes : several_sizes())
      for (const bool with_lengths : {false, true}) {
        const RecurrentInputs inputs = recurrent_inputs(of, sizes, 14);
        INFO(of.name << ", " << text(sizes) << (with_lengths ? ", lengths" : ""));
        const Setting setting{{.cell = of.cell, .norm = of.norm}, with_lengths ? some_lengths(sizes) : std::vector<int64_t>{}, 0};
        const auto with = [&](int threads) {
          const Threads guard(threads);
          return run_fused(of, inputs, setting, DType::f64);
        };
        const Run one = with(1);
        for (const int threads : {2, 3}) {
          const Run many = with(threads);
          check("y", many.result.y, one.result.y, f64_chain);
          for (size_t i = 0; i < inputs.names.size(); ++i) check(inputs.names[i], many.gradients[i], one.gradients[i], f64_chain);
        }
      }
}

TEST_CASE("recurrent: wide layers, where threads share the columns of a step") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const bool with_lengths : {false, true}) {
      const RecurrentSizes sizes{3, 4, 6, 200};
      INFO(of.name << (with_lengths ? ", lengths" : ""));
      check_against_oracle(of, recurrent_inputs(of, sizes, 21),
                           {{.cell = of.cell, .norm = of.norm}, with_lengths ? some_lengths(sizes) : std::vector<int64_t>{}, 0}, DType::f64);
    }
}

TEST_CASE("recurrent: one gradient alone is what it is among all") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const bool with_lengths : {false, true}) {
      const RecurrentSizes sizes{4, 4, 3, 5};
      const RecurrentInputs inputs = recurrent_inputs(of, sizes, 22);
      const Setting setting{{.cell = of.cell, .norm = of.norm}, with_lengths ? some_lengths(sizes) : std::vector<int64_t>{}, 0};
      const Run all = run_fused(of, inputs, setting, DType::f64);
      for (size_t i = 0; i < inputs.names.size(); ++i) {
        INFO(of.name << ", " << inputs.names[i]);
        RecurrentInputs one = inputs;
        one.tensors[i] = inputs.tensors[i].clone().set_requires_grad();
        recurrent_loss(forward(of, one, setting)).backward();
        CHECK(same_bits(one.tensors[i].grad(), all.gradients[i]));
        for (size_t j = 0; j < inputs.names.size(); ++j)
          if (j != i) CHECK_FALSE(one.tensors[j].grad().defined());
      }
    }
}

TEST_CASE("recurrent: rows without spread give the bias and finite gradients, saturated ones too") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const double scale : {0.0, 1e4}) {
      // Weights of 0: every row that is normalised is constant. Large ones: every gate is 0 or 1, and norms are of rows of large values.
      RecurrentInputs inputs = recurrent_inputs(of, {4, 3, 3, 6}, 23);
      for (size_t i = 0; i < inputs.names.size(); ++i)
        if (inputs.names[i].starts_with("weight")) inputs.tensors[i] = inputs.tensors[i] * scale;
      INFO(of.name << ", weights times " << scale);
      // Summed inputs of 1e4 are rounded to 1.8e-12, which a gate that is not saturated hands on.
      constexpr double slack = 10;
      check_against_oracle(of, inputs, {{.cell = of.cell, .norm = of.norm}, {}, 0}, DType::f64, false, slack);
      const Run run = run_fused(of, inputs, {{.cell = of.cell, .norm = of.norm}, {}, 0}, DType::f32);
      for (const double v : values(run.result.y)) CHECK(std::isfinite(v));
      for (const Tensor& gradient : run.gradients)
        for (const double v : values(gradient)) CHECK(std::isfinite(v));
    }
}

// The end of one gate's range must not reach another (as it would if they shared divisions).
TEST_CASE("recurrent: gates at the ends of their ranges beside any other") {
  constexpr double infinity = HUGE_VAL;
  const std::vector<double> ends{-infinity, -710, -200, -87.5, -86.5, 0.4, 88, 708, infinity};
  const size_t n = ends.size(), hidden = n * n;
  for (const RecurrentCase& of : recurrent_cases()) {
    RecurrentInputs inputs = recurrent_inputs(of, {3, 4, 3, static_cast<int64_t>(hidden)}, 28);
    std::vector<double> bias;
    // Over the units, gates 0 and 2, 1 and 2, and 3 and 1 have all pairs.
    for (size_t gate = 0; gate < static_cast<size_t>(gate_count(of.cell)); ++gate)
      for (size_t a = 0; a < n; ++a)
        for (size_t b = 0; b < n; ++b) bias.push_back(ends[(gate == 0 ? a : gate == 1 ? b : gate == 2 ? a + b : a + 2 * b) % n]);
    for (size_t i = 0; i < inputs.names.size(); ++i)
      if (inputs.names[i] == "bias_ih") inputs.tensors[i] = tensor(bias, {static_cast<int64_t>(bias.size())});
    for (const DType dtype : {DType::f64, DType::f32}) {
      INFO(of.name << (dtype == DType::f64 ? ", f64" : ", f32"));
      check_against_oracle(of, inputs, {{.cell = of.cell, .norm = of.norm}, {}, 0}, dtype, false);
    }
  }
}

TEST_CASE("recurrent: sums whose squares overflow or vanish in f32 are normalised as exactly as others") {
  for (const RecurrentCase& of : recurrent_cases()) {
    if (of.norm == RecurrentNorm::none) continue;
    for (const double scale : {1e-25, 1e25}) {
      RecurrentInputs inputs = recurrent_inputs(of, {4, 5, 3, 9}, 27);
      for (size_t i = 0; i < inputs.names.size(); ++i)
        if (inputs.names[i].starts_with("weight")) inputs.tensors[i] = inputs.tensors[i] * scale;
      INFO(of.name << ", weights times " << scale);
      check_against_oracle(of, inputs, {{.cell = of.cell, .norm = of.norm, .eps = 0}, {}, 0}, DType::f32, false);
    }
  }
}

TEST_CASE("recurrent: a sequence that is not a number stays alone, for every norm but batch") {
  for (const RecurrentCase& of : recurrent_cases()) {
    if (of.norm == RecurrentNorm::batch) continue;
    const RecurrentSizes sizes{3, 5, 3, 9};
    const RecurrentInputs inputs = recurrent_inputs(of, sizes, 24, DType::f32);
    RecurrentInputs spoilt = inputs;
    std::vector<float> x = spoilt.tensors[0].to_vector<float>();
    x[3] = std::nanf("");  // the second sequence's first step
    spoilt.tensors[0] = tensor(x, {3, 5, 3});
    const Setting setting{{.cell = of.cell, .norm = of.norm}, {}, 0};
    const Run clean = run_fused(of, inputs, setting, DType::f32), run = run_fused(of, spoilt, setting, DType::f32);
    INFO(of.name);
    const auto check_sequences = [&](const Tensor& all, const Tensor& all_clean) {
      for (int64_t n = 0; n < 5; ++n) {
        const Tensor own = slice(all, 1, n, n + 1);
        if (n == 1)
          for (const double v : values(own)) CHECK(std::isnan(v));
        else
          CHECK(same_bits(own, slice(all_clean, 1, n, n + 1)));
      }
    };
    check_sequences(run.result.y, clean.result.y);
    check_sequences(run.gradients[0], clean.gradients[0]);
  }
}

TEST_CASE("recurrent: sizes of zero") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const RecurrentSizes& sizes :
         std::vector<RecurrentSizes>{{0, 3, 2, 4}, {3, 0, 2, 4}, {3, 2, 0, 4}, {3, 2, 2, 0}, {0, 0, 0, 0}, {3, 64, 3, 0}, {3, 64, 0, 4}}) {
      INFO(of.name << ", " << text(sizes));
      const RecurrentInputs leaves = recurrent_inputs(of, sizes, 25).leaves(DType::f64);
      const RecurrentResult r = forward(of, leaves, {{.cell = of.cell, .norm = of.norm}, {}, 0});
      CHECK(r.y.shape() == Shape{sizes.steps, sizes.batch, sizes.hidden});
      CHECK(r.h.shape() == Shape{sizes.batch, sizes.hidden});
      recurrent_loss(r).backward();
      for (size_t i = 0; i < leaves.names.size(); ++i) {
        INFO(leaves.names[i]);
        CHECK(leaves.tensors[i].grad().shape() == leaves.tensors[i].shape());
        for (const double v : values(leaves.tensors[i].grad())) CHECK(std::isfinite(v));
        if (sizes.steps == 0 && !leaves.names[i].ends_with("0")) CHECK(norm_of(leaves.tensors[i].grad()) == 0);
      }
      if (sizes.steps == 0) check_close(r.h, leaves["h0"], exact);
      if (sizes.input == 0 && sizes.hidden > 0) CHECK(norm_of(r.y) > 0);
      if (sizes.hidden == 0) CHECK(norm_of(leaves["x"].grad()) == 0);
    }
}

TEST_CASE("recurrent: weights changed before the backward pass are an error, not a wrong gradient") {
  for (const RecurrentCase& of : recurrent_cases()) {
    const RecurrentInputs inputs = recurrent_inputs(of, {3, 3, 2, 4}, 26);
    for (const char* name : {"weight_ih", "weight_hh"}) {
      RecurrentInputs leaves = inputs.leaves(DType::f64);
      const Tensor loss = recurrent_loss(forward(of, leaves, {{.cell = of.cell, .norm = of.norm}, {}, 0}));
      Tensor weight = leaves[name];
      {
        const NoGrad no_grad;
        weight.fill_(1);
      }
      INFO(of.name << ", " << name);
      CHECK_THROWS_WITH(loss.backward(), contains("changed"));
    }
  }
}
