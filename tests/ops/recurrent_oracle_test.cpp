// The fused recurrent op against its composed version: every output and every gradient, for every cell and norm.
#include <lamina/ops/recurrent.h>

#include "support/catch.h"
#include "support/gradcheck.h"
#include "support/recurrent_compare.h"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("recurrent equals its composed version: outputs and every gradient, f64") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const RecurrentSizes& sizes :
         std::vector<RecurrentSizes>{{5, 3, 4, 6}, {1, 2, 3, 5}, {4, 1, 3, 5}, {7, 5, 3, 17}, {3, 2, 9, 33}, {2, 9, 1, 16}})
      for (const bool reverse : {false, true}) {
        if (of.norm == RecurrentNorm::batch && sizes.batch < 2) continue;
        INFO(of.name << ", " << text(sizes) << (reverse ? ", reverse" : ""));
        // Two sequences under batch norm are +-1 of each other: gradients of what comes before it are rounding.
        const bool all_gradients = of.norm != RecurrentNorm::batch || sizes.batch > 2;
        check_against_oracle(of, recurrent_inputs(of, sizes), {{.cell = of.cell, .norm = of.norm, .reverse = reverse}, {}, 0}, DType::f64,
                             all_gradients);
      }
}

TEST_CASE("recurrent equals its composed version with lengths: unsorted, none and all of T") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const RecurrentSizes& sizes : std::vector<RecurrentSizes>{{7, 6, 3, 9}, {4, 8, 5, 16}, {3, 4, 2, 7}})
      for (const bool reverse : {false, true}) {
        INFO(of.name << ", " << text(sizes) << (reverse ? ", reverse" : ""));
        check_against_oracle(of, recurrent_inputs(of, sizes, 2), {{.cell = of.cell, .norm = of.norm, .reverse = reverse}, some_lengths(sizes), 0},
                             DType::f64);
      }
}

TEST_CASE("recurrent equals its composed version in f32") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const RecurrentSizes& sizes : std::vector<RecurrentSizes>{{6, 5, 7, 31}, {3, 17, 5, 64}, {2, 4, 40, 100}})
      for (const bool with_lengths : {false, true}) {
        INFO(of.name << ", " << text(sizes) << (with_lengths ? ", lengths" : ""));
        check_against_oracle(of, recurrent_inputs(of, sizes, 3),
                             {{.cell = of.cell, .norm = of.norm}, with_lengths ? some_lengths(sizes) : std::vector<int64_t>{}, 0}, DType::f32);
      }
}

TEST_CASE("recurrent equals its composed version over thousands of rows, which it takes in several runs", "[large]") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const bool reverse : {false, true})
      for (const bool with_lengths : {false, true}) {
        const RecurrentSizes sizes{31, 150, 2, 3};
        INFO(of.name << (reverse ? ", reverse" : "") << (with_lengths ? ", lengths" : ""));
        check_against_oracle(of, recurrent_inputs(of, sizes, 15),
                             {{.cell = of.cell, .norm = of.norm, .reverse = reverse}, with_lengths ? some_lengths(sizes) : std::vector<int64_t>{}, 0},
                             DType::f64);
      }
}

TEST_CASE("recurrent without biases and without a state at the start") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const auto& [states, biases] : {std::pair{true, false}, {false, true}, {false, false}}) {
      const RecurrentSizes sizes{4, 3, 3, 5};
      INFO(of.name << (states ? "" : ", no states") << (biases ? "" : ", no biases"));
      check_against_oracle(of, recurrent_inputs(of, sizes, 4, DType::f64, states, biases), {{.cell = of.cell, .norm = of.norm}, {}, 0}, DType::f64);
    }
}

TEST_CASE("recurrent: eps is inside the root, and arrives at every normaliser") {
  for (const RecurrentCase& of : recurrent_cases()) {
    if (of.norm == RecurrentNorm::none) continue;
    INFO(of.name);
    const RecurrentInputs inputs = recurrent_inputs(of, {3, 4, 3, 5}, 5);
    check_against_oracle(of, inputs, {{.cell = of.cell, .norm = of.norm, .eps = 0.3}, {}, 0}, DType::f64);
    const Tensor large = run_fused(of, inputs, {{.cell = of.cell, .norm = of.norm, .eps = 0.3}, {}, 0}, DType::f64).result.y;
    const Tensor small = run_fused(of, inputs, {{.cell = of.cell, .norm = of.norm}, {}, 0}, DType::f64).result.y;
    CHECK(max_difference(large, small) > 1e-3);
  }
}

TEST_CASE("recurrent batch norm: running statistics by step, in training and in evaluation") {
  for (const RecurrentCase& of : recurrent_cases()) {
    if (of.norm != RecurrentNorm::batch) continue;
    const RecurrentSizes sizes{4, 5, 3, 6};
    const RecurrentInputs inputs = recurrent_inputs(of, sizes, 6);
    for (const bool training : {true, false})
      for (const bool reverse : {false, true}) {
        INFO(of.name << (training ? ", training" : ", evaluation") << (reverse ? ", reverse" : ""));
        const RecurrentOptions options{.cell = of.cell, .norm = of.norm, .reverse = reverse, .training = training, .momentum = 0.3};
        check_against_oracle(of, inputs, {options, {}, 0}, DType::f64);
        check_against_oracle(of, inputs, {options, {}, 6}, DType::f64);  // more rows than steps
        check_against_oracle(of, inputs, {options, {4, 2, 0, 4, 4}, 0}, DType::f64);
        check_against_oracle(of, inputs, {options, {}, 2}, DType::f64);  // fewer: the last row serves the rest
        const auto before = statistics_list(recurrent_statistics(of, 4, sizes.hidden));
        const auto after = statistics_list(run_fused(of, inputs, {options, {}, 0}, DType::f64).statistics);
        for (size_t i = 0; i < before.size(); ++i) CHECK((max_difference(before[i], after[i]) > 1e-3) == training);
      }
    // In evaluation one sequence is enough.
    const RecurrentOptions evaluation{.cell = of.cell, .norm = of.norm, .training = false};
    check_against_oracle(of, recurrent_inputs(of, {3, 1, 3, 6}, 7), {evaluation, {}, 0}, DType::f64);
    check_against_oracle(of, recurrent_inputs(of, {3, 3, 3, 6}, 7), {evaluation, {1, 3, 0}, 0}, DType::f64);
  }
}

TEST_CASE("recurrent: gradients against central differences") {
  for (const RecurrentCase& of : recurrent_cases())
    for (const bool with_lengths : {false, true}) {
      const RecurrentSizes sizes{3, 4, 2, 3};
      const RecurrentInputs inputs = recurrent_inputs(of, sizes, 8);
      INFO(of.name << (with_lengths ? ", lengths, reverse" : ""));
      check_gradients(
          [&](const std::vector<Tensor>& in) {
            RecurrentInputs t{inputs.names, in};
            const std::vector<int64_t> lengths = with_lengths ? std::vector<int64_t>{2, 0, 3, 3} : std::vector<int64_t>{};
            const RecurrentResult r = recurrent(t["x"], t["h0"], t["c0"], t.parameters(), {.cell = of.cell, .norm = of.norm, .reverse = with_lengths},
                                                lengths, recurrent_statistics(of, 3, sizes.hidden));
            std::vector<Tensor> all = {flatten(r.y), flatten(r.h)};
            if (r.c.defined()) all.push_back(flatten(r.c));
            return concat(all);
          },
          inputs.tensors, {.rtol = 1e-5});  // rows of three and four values: their second derivatives are large
    }
}

TEST_CASE("recurrent: a gradient for one output alone") {
  for (const RecurrentCase& of : recurrent_cases()) {
    const RecurrentInputs inputs = recurrent_inputs(of, {4, 3, 3, 5}, 9);
    const std::vector<int64_t> lengths = {4, 4, 2};
    for (int output = 0; output < (of.cell == RecurrentCell::lstm ? 3 : 2); ++output) {
      INFO(of.name << ", output " << output);
      const auto gradients = [&](auto&& op) {
        const RecurrentInputs leaves = inputs.leaves(DType::f64);
        const RecurrentResult r = op(leaves["x"], leaves["h0"], leaves["c0"], leaves.parameters(), RecurrentOptions{.cell = of.cell, .norm = of.norm},
                                     lengths, recurrent_statistics(of, 4, 5));
        const Tensor& y = output == 0 ? r.y : output == 1 ? r.h : r.c;
        y.backward(normal(y.shape(), 10, DType::f64));
        return leaves;
      };
      const RecurrentInputs have = gradients([](const auto&... a) { return recurrent(a...); });
      const RecurrentInputs expected = gradients([](const auto&... a) { return recurrent_oracle(a...); });
      for (size_t i = 0; i < inputs.names.size(); ++i) {
        const Tensor& e = expected.tensors[i];
        check("gradient of " + inputs.names[i], have.tensors[i].grad(), e.grad().defined() ? e.grad() : zeros(e.shape(), DType::f64), f64_chain);
      }
    }
  }
}

TEST_CASE("recurrent: with lengths every sequence gives what it gives alone, for every norm but batch") {
  for (const RecurrentCase& of : recurrent_cases()) {
    if (of.norm == RecurrentNorm::batch) continue;
    const RecurrentSizes sizes{6, 5, 3, 7};
    const std::vector<int64_t> lengths = {2, 6, 0, 5, 1};
    const RecurrentInputs inputs = recurrent_inputs(of, sizes, 11);
    for (const bool reverse : {false, true}) {
      INFO(of.name << (reverse ? ", reverse" : ""));
      const RecurrentOptions options{.cell = of.cell, .norm = of.norm, .reverse = reverse};
      RecurrentInputs together = inputs.leaves(DType::f64), alone = inputs.leaves(DType::f64);
      const RecurrentResult all = recurrent(together["x"], together["h0"], together["c0"], together.parameters(), options, lengths);
      recurrent_loss(all).backward();
      const Tensor dy = normal(all.y.shape(), 78, DType::f32).cast(DType::f64), dh = normal(all.h.shape(), 79, DType::f32).cast(DType::f64),
                   dc = normal(all.h.shape(), 80, DType::f32).cast(DType::f64);
      for (int64_t n = 0; n < sizes.batch; ++n) {
        INFO("sequence " << n);
        const int64_t length = lengths[static_cast<size_t>(n)];
        const auto own = [&](const Tensor& t, int axis) { return t.defined() ? slice(t, axis, n, n + 1) : t; };
        const Tensor x = slice(own(alone["x"], 1), 0, 0, length);
        const RecurrentResult one = recurrent(x, own(alone["h0"], 0), own(alone["c0"], 0), alone.parameters(), options);
        check_close(slice(own(all.y, 1), 0, 0, length), one.y, f64_chain);
        check_close(slice(own(all.y, 1), 0, length), std::vector<double>(static_cast<size_t>((sizes.steps - length) * sizes.hidden), 0.0), exact);
        check_close(own(all.h, 0), one.h, f64_chain);
        if (one.c.defined()) check_close(own(all.c, 0), one.c, f64_chain);
        Tensor loss = sum(one.h * own(dh, 0)) + sum(one.y * slice(own(dy, 1), 0, 0, length));
        if (one.c.defined()) loss = loss + sum(one.c * own(dc, 0));
        loss.backward();
      }
      for (size_t i = 0; i < inputs.names.size(); ++i)
        check("gradient of " + inputs.names[i], together.tensors[i].grad(), alone.tensors[i].grad(), f64_chain);
      // Nothing leaks into the padding's gradient.
      for (int64_t n = 0; n < sizes.batch; ++n)
        for (const double v : values(slice(slice(together["x"].grad(), 1, n, n + 1), 0, lengths[static_cast<size_t>(n)]))) CHECK(v == 0);
    }
  }
}

TEST_CASE("recurrent: what stands in the padding does not matter, NaN and infinities included") {
  for (const RecurrentCase& of : recurrent_cases()) {
    const RecurrentInputs inputs = recurrent_inputs(of, {4, 4, 3, 5}, 12);
    const std::vector<int64_t> lengths = {2, 4, 1, 4};
    RecurrentInputs spoilt = inputs;
    for (size_t i = 0; i < spoilt.names.size(); ++i)
      if (spoilt.names[i] == "x") {
        std::vector<double> x = values(spoilt.tensors[i]);
        for (int64_t t = 0; t < 4; ++t)
          for (int64_t n = 0; n < 4; ++n)
            for (int64_t k = 0; k < 3; ++k)
              if (t >= lengths[static_cast<size_t>(n)]) x[static_cast<size_t>((t * 4 + n) * 3 + k)] = k == 0 ? NAN : k == 1 ? HUGE_VAL : -1e300;
        spoilt.tensors[i] = tensor(x, {4, 4, 3});
      }
    INFO(of.name);
    const Setting setting{{.cell = of.cell, .norm = of.norm}, lengths, 0};
    const Run clean = run_fused(of, inputs, setting, DType::f64), run = run_fused(of, spoilt, setting, DType::f64);
    check_close(run.result.y, clean.result.y, f64_chain);
    check_close(run.result.h, clean.result.h, f64_chain);
    for (size_t i = 0; i < inputs.names.size(); ++i) check("gradient of " + inputs.names[i], run.gradients[i], clean.gradients[i], f64_chain);
  }
}

TEST_CASE("B07: chunks of a sequence with the state carried over give what the whole gives") {
  for (const RecurrentCase& of : recurrent_cases()) {
    if (of.norm == RecurrentNorm::batch) continue;  // its statistics' rows count from each call's start
    INFO(of.name);
    const RecurrentInputs inputs = recurrent_inputs(of, {12, 3, 3, 6}, 13);
    const RecurrentOptions options{.cell = of.cell, .norm = of.norm};
    const RecurrentResult whole = recurrent(inputs["x"], inputs["h0"], inputs["c0"], inputs.parameters(), options);
    Tensor h = inputs["h0"], c = inputs["c0"];
    for (int64_t begin = 0; begin < 12; begin += 4) {
      const RecurrentResult part = recurrent(slice(inputs["x"], 0, begin, begin + 4), h, c, inputs.parameters(), options);
      check_close(part.y, slice(whole.y, 0, begin, begin + 4), f64_chain);
      h = part.h.detach();
      c = part.c.defined() ? part.c.detach() : part.c;
    }
    check_close(h, whole.h, f64_chain);
  }
}
