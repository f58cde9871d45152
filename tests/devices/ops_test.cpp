// Every op, forward and backward, on a GPU against the CPU, under random cotangents; and a list check that no op is forgotten.
#include <lamina/autograd/graph.h>
#include <lamina/ops/dropout.h>
#include <lamina/ops/elementwise.h>
#include <lamina/ops/loss.h>
#include <lamina/ops/matmul.h>
#include <lamina/ops/norm.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/ops/softmax.h>

#include <filesystem>
#include <regex>
#include <set>

#include "devices/agreement.h"
#include "support/files.h"
#include "support/recurrent_compare.h"

using namespace lamina;
using namespace lamina::test;

namespace {

using In = const std::vector<Tensor>&;
enum class Exactly { no, yes };  // movers, and single rounded operations

struct OpCase {
  std::string name;            // of the op; several cases may share one
  std::vector<Tensor> inputs;  // floats become f32 and f64; integers stay
  std::function<Tensor(In)> fn;
  Exactly exactly = Exactly::no;
};

Tensor any(const Shape& shape, uint64_t seed) { return normal(shape, seed, DType::f64); }
Tensor positive(const Shape& shape, uint64_t seed) { return uniform(shape, seed, 0.2, 3, DType::f64); }
Tensor apart(const Shape& shape, uint64_t seed) { return distinct(shape, seed, 0.1, DType::f64); }
Tensor off_zero(const Shape& shape, uint64_t seed) { return away_from_zero(shape, seed, 0.1, 2, DType::f64); }

std::vector<OpCase> elementwise_cases() {
  const auto e = Exactly::yes;
  const Tensor a = off_zero({3, 1, 35}, 1), b = off_zero({5, 1}, 2), wide = any({7, 333}, 3), p = positive({7, 333}, 4);
  const Tensor grid = apart({7, 33}, 5), other = apart({7, 33}, 6);
  return {
      {"add", {a, b}, [](In v) { return add(v[0], v[1]); }},
      {"sub", {a, b}, [](In v) { return sub(v[0], v[1]); }},
      {"mul", {a, b}, [](In v) { return mul(v[0], v[1]); }},
      {"div", {a, b}, [](In v) { return div(v[0], v[1]); }},
      {"maximum", {grid, other}, [](In v) { return maximum(v[0], v[1]); }, e},
      {"minimum", {grid, other}, [](In v) { return minimum(v[0], v[1]); }, e},
      {"pow", {p, wide}, [](In v) { return pow(v[0], v[1]); }},
      {"pow", {p}, [](In v) { return pow(v[0], 2.5); }},
      {"add", {wide}, [](In v) { return (1.5 + v[0]) + 0.25; }, e},
      {"sub", {wide}, [](In v) { return (1.5 - v[0]) - 0.25; }, e},
      {"mul", {wide}, [](In v) { return (1.5 * v[0]) * 0.25; }, e},
      {"div", {p}, [](In v) { return (1.5 / v[0]) / 3.0; }},
      {"sub", {wide}, [](In v) { return -v[0]; }, e},
      {"abs", {wide}, [](In v) { return abs(v[0]); }, e},
      {"exp", {wide}, [](In v) { return exp(v[0]); }},
      {"expm1", {wide}, [](In v) { return expm1(v[0]); }},
      {"log", {p}, [](In v) { return log(v[0]); }},
      {"log1p", {p}, [](In v) { return log1p(v[0]); }},
      {"sqrt", {p}, [](In v) { return sqrt(v[0]); }},
      {"square", {wide}, [](In v) { return square(v[0]); }},
      {"reciprocal", {p}, [](In v) { return reciprocal(v[0]); }},
      {"sin", {wide}, [](In v) { return sin(v[0]); }},
      {"cos", {wide}, [](In v) { return cos(v[0]); }},
      {"erf", {wide}, [](In v) { return erf(v[0]); }},
      {"sign", {wide}, [](In v) { return sign(v[0]); }, e},
      {"floor", {wide}, [](In v) { return floor(v[0]); }, e},
      {"clamp", {grid}, [](In v) { return clamp(v[0], -0.72, 0.93); }, e},
      {"relu", {wide}, [](In v) { return relu(v[0]); }, e},
      {"leaky_relu", {wide}, [](In v) { return leaky_relu(v[0], 0.2); }},
      {"tanh", {wide}, [](In v) { return tanh(v[0]); }},
      {"sigmoid", {wide}, [](In v) { return sigmoid(v[0]); }},
      {"gelu", {wide}, [](In v) { return gelu(v[0]); }},
      {"gelu", {wide}, [](In v) { return gelu(v[0], Gelu::tanh); }},
      {"silu", {wide}, [](In v) { return silu(v[0]); }},
      {"softplus", {wide}, [](In v) { return softplus(v[0]); }},
      {"eq", {grid, other}, [](In v) { return eq(floor(v[0]), floor(v[1])).cast(v[0].dtype()); }, e},
      {"ne", {grid, other}, [](In v) { return ne(v[0], v[1]).cast(v[0].dtype()); }, e},
      {"lt", {grid, other}, [](In v) { return lt(v[0], v[1]).cast(v[0].dtype()); }, e},
      {"le", {grid, other}, [](In v) { return le(v[0], v[1]).cast(v[0].dtype()); }, e},
      {"gt", {grid, other}, [](In v) { return gt(v[0], v[1]).cast(v[0].dtype()); }, e},
      {"ge", {grid}, [](In v) { return ge(v[0], 0.125).cast(v[0].dtype()); }, e},
      {"where", {grid, other, wide}, [](In v) { return where(lt(v[0], v[1]), v[0], slice(v[2], 1, 0, 33)); }, e},
  };
}

std::vector<OpCase> shape_cases() {
  const auto e = Exactly::yes;
  const Tensor x = any({4, 5, 6}, 1), small = any({4, 1, 6}, 2), table = any({7, 5}, 3), ids = integers({3, 4}, 4, 0, 7);
  return {
      {"reshape",
       {x},
       [](In v) {
         return reshape(v[0], {10, -1});
       },
       e},
      {"flatten", {x}, [](In v) { return flatten(v[0], 1); }, e},
      {"squeeze", {small}, [](In v) { return squeeze(v[0], 1); }, e},
      {"unsqueeze", {x}, [](In v) { return unsqueeze(v[0], 1); }, e},
      {"permute",
       {x},
       [](In v) {
         return permute(v[0], {2, 0, 1});
       },
       e},
      {"transpose", {x}, [](In v) { return transpose(v[0]); }, e},
      {"expand",
       {small},
       [](In v) {
         return expand(v[0], {2, 4, 3, 6});
       }},
      {"concat",
       {x, small},
       [](In v) {
         return concat({v[0], v[1], v[0]}, 1);
       }},
      {"stack",
       {x, x},
       [](In v) {
         return stack({v[0], v[1]}, 1);
       },
       e},
      {"slice", {x}, [](In v) { return slice(v[0], 1, 1, -1); }, e},
      {"select", {x}, [](In v) { return select(v[0], 2, -2); }, e},
      {"split",
       {x},
       [](In v) {
         return concat({split(v[0], 2, 1)[2], split(v[0], 2, 1)[0]}, 1);
       },
       e},
      {"index_select", {x, integers({9}, 5, 0, 5)}, [](In v) { return index_select(v[0], 1, v[1]); }},
      {"gather", {x, integers({4, 3, 6}, 6, 0, 5)}, [](In v) { return gather(v[0], 1, v[1]); }},
      {"embedding", {ids, table}, [](In v) { return embedding(v[0], v[1], 2); }},
      {"one_hot", {ids, table}, [](In v) { return matmul(one_hot(v[0], 7, v[1].dtype()), v[1]); }},
  };
}

std::vector<OpCase> sum_cases() {
  const Tensor x = any({6, 17, 9}, 1), d = apart({6, 17, 9}, 2);
  const Tensor logits = any({11, 37}, 3), labels = integers({11}, 4, 0, 37), target = any({11, 37}, 5),
               share = uniform({11, 37}, 6, 0, 1, DType::f64);
  std::vector<OpCase> cases = {
      {"sum",
       {x},
       [](In v) {
         return sum(v[0], {0, 2});
       }},
      {"sum", {x}, [](In v) { return sum(v[0], {1}); }},
      {"mean", {x}, [](In v) { return mean(v[0]); }},
      {"var", {x}, [](In v) { return var(v[0], {-1}); }},
      {"max", {d}, [](In v) { return max(v[0], {1}); }, Exactly::yes},
      {"min", {d}, [](In v) { return min(v[0]); }, Exactly::yes},
      {"norm",
       {x},
       [](In v) {
         return norm(v[0], {0, 1});
       }},
      {"argmax", {d}, [](In v) { return argmax(v[0], 1).cast(v[0].dtype()); }, Exactly::yes},
      {"argmin", {d}, [](In v) { return argmin(v[0]).cast(v[0].dtype()); }, Exactly::yes},
      {"sum_to",
       {x},
       [](In v) {
         return sum_to(v[0], {17, 1});
       }},
      {"softmax", {x}, [](In v) { return softmax(v[0]); }},
      {"softmax", {x}, [](In v) { return softmax(v[0], 1); }},
      {"log_softmax", {x}, [](In v) { return log_softmax(v[0]); }},
      {"matmul", {any({3, 7, 5}, 7), any({3, 5, 9}, 8)}, [](In v) { return matmul(v[0], v[1]); }},
      {"matmul", {any({2, 5, 7}, 9), any({9, 5}, 10)}, [](In v) { return matmul(v[0], v[1], {.transpose_a = true, .transpose_b = true}); }},
      {"linear", {any({4, 3, 21}, 11), any({13, 21}, 12), any({13}, 13)}, [](In v) { return linear(v[0], v[1], v[2]); }},
      {"dropout",
       {x},
       [](In v) {
         Rng rng(9);
         return dropout(v[0], 0.3, rng);
       }},
  };
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    cases.push_back({"cross_entropy", {logits, labels}, [r](In v) {
                       return cross_entropy(v[0], v[1], {.ignore_index = 3, .label_smoothing = 0.1, .reduction = r});
                     }});
    cases.push_back({"nll_loss", {logits, labels}, [r](In v) { return nll_loss(log_softmax(v[0]), v[1], 3, r); }});
    cases.push_back({"mse_loss", {logits, target}, [r](In v) { return mse_loss(v[0], v[1], r); }});
    cases.push_back({"bce_with_logits", {logits, share}, [r](In v) { return bce_with_logits(v[0], v[1], r); }});
  }
  return cases;
}

std::vector<OpCase> norm_cases() {
  const Tensor x = any({6, 8, 15}, 1), gain = any({15}, 2), bias = any({15}, 3), channel_gain = any({8}, 4), channel_bias = any({8}, 5);
  const Tensor mean = any({8}, 6), var = positive({8}, 7), long_rows = any({3, 1100}, 8), long_gain = any({1100}, 9), long_bias = any({1100}, 10);
  return {
      {"layer_norm", {x, gain, bias}, [](In v) { return layer_norm(v[0], {15}, v[1], v[2]); }},
      {"layer_norm", {long_rows, long_gain, long_bias}, [](In v) { return layer_norm(v[0], {1100}, v[1], v[2]); }},
      {"rms_norm", {x, gain, bias}, [](In v) { return rms_norm(v[0], {15}, v[1], v[2], {.partial = 0.4}); }},
      {"group_norm", {x, channel_gain, channel_bias}, [](In v) { return group_norm(v[0], 2, v[1], v[2]); }},
      {"instance_norm", {x, channel_gain, channel_bias}, [](In v) { return instance_norm(v[0], v[1], v[2]); }},
      {"batch_norm", {x, channel_gain, channel_bias}, [](In v) { return batch_norm(v[0], v[1], v[2], {}, {}, {}); }},
      {"batch_norm",
       {x, channel_gain, channel_bias, mean, var},
       [](In v) { return batch_norm(v[0], v[1], v[2], v[3].detach(), v[4].detach(), {}, {.training = false}); }},
      {"batch_norm", {x, channel_bias}, [](In v) { return batch_norm(v[0], {}, v[1], {}, {}, {}, {.mean_only = true}); }},
      {"batch_norm",
       {any({32, 9}, 11), any({9}, 12), any({9}, 13)},
       [](In v) { return batch_norm(v[0], v[1], v[2], {}, {}, {}, {.unbiased = true}); }},
      {"weight_norm", {any({9, 21}, 14), any({9, 1}, 15)}, [](In v) { return weight_norm(v[0], v[1]); }},
  };
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const auto& some : {elementwise_cases(), shape_cases(), sum_cases(), norm_cases()}) cases.insert(cases.end(), some.begin(), some.end());
  return cases;
}

struct Outcome {
  Tensor y;
  std::vector<Tensor> gradients;
};

/// The result and all gradients of floats, under one cotangent for both devices.
Outcome outcome(const OpCase& c, DType dtype, Device where) {
  std::vector<Tensor> inputs;
  for (const Tensor& input : c.inputs) {
    inputs.push_back(is_float(input.dtype()) ? input.cast(dtype).to(where).detach().clone() : input.to(where));
    if (is_float(input.dtype())) inputs.back().set_requires_grad();
  }
  Outcome result{c.fn(inputs), {}};
  CHECK(result.y.device() == where);
  if (result.y.requires_grad()) result.y.backward(normal(result.y.shape(), 4242, dtype).to(where));
  for (const Tensor& input : inputs) result.gradients.push_back(is_float(input.dtype()) ? input.grad() : Tensor());
  return result;
}

void check_cases(const std::vector<OpCase>& cases) {
  for (const OpCase& c : cases)
    for (const DType dtype : {DType::f32, DType::f64}) {
      INFO(c.name << " " << (dtype == DType::f32 ? "f32" : "f64"));
      const Outcome cuda = outcome(c, dtype, device()), cpu = outcome(c, dtype, Device::cpu()), again = outcome(c, dtype, device());
      const double tolerance = c.exactly == Exactly::yes ? exact : agreement(dtype);
      check_agreement("result", cuda.y, cpu.y, tolerance);
      CHECK(norm_of(cpu.y) > 0);
      CHECK(same_bits(cuda.y, again.y));
      for (size_t i = 0; i < cpu.gradients.size(); ++i) {
        check_agreement("gradient " + std::to_string(i), cuda.gradients[i], cpu.gradients[i], tolerance);
        if (cuda.gradients[i].defined()) CHECK(same_bits(cuda.gradients[i], again.gradients[i]));
      }
    }
}

}  // namespace

TEST_CASE("CPU and GPU agree: elementwise ops") { check_cases(elementwise_cases()); }
TEST_CASE("CPU and GPU agree: shapes and indices") { check_cases(shape_cases()); }
TEST_CASE("CPU and GPU agree: reductions, softmax, products, losses") { check_cases(sum_cases()); }
TEST_CASE("CPU and GPU agree: normalisers") { check_cases(norm_cases()); }

TEST_CASE("CPU and GPU agree: recurrent ops, every cell and norm, lengths, both directions, training and evaluation") {
  const RecurrentSizes sizes{4, 5, 3, 6};
  for (const RecurrentCase& of : recurrent_cases())
    for (const bool reverse : {false, true})
      for (const DType dtype : {DType::f32, DType::f64}) {
        INFO(of.name << (reverse ? " reverse" : "") << (dtype == DType::f32 ? " f32" : " f64"));
        const RecurrentInputs cuda = recurrent_inputs(of, sizes);
        RecurrentInputs cpu = cuda;
        cpu.tensors = moved(cpu.tensors, Device::cpu());
        const auto go = [&](const RecurrentInputs& inputs, Device where) {
          const RecurrentInputs leaves = inputs.leaves(dtype);
          RecurrentStatistics statistics = recurrent_statistics(of, sizes.steps, sizes.hidden, dtype);
          for (Tensor* t : {&statistics.mean_ih, &statistics.var_ih, &statistics.mean_hh, &statistics.var_hh, &statistics.mean_c, &statistics.var_c})
            if (t->defined()) *t = t->to(where).clone();
          const RecurrentResult r =
              recurrent(leaves["x"], leaves["h0"], leaves["c0"], leaves.parameters(),
                        {.cell = of.cell, .norm = of.norm, .reverse = reverse, .training = !reverse}, some_lengths(sizes), statistics);
          Tensor loss = sum(r.y * normal(r.y.shape(), 1, dtype).to(where)) + sum(r.h * normal(r.h.shape(), 2, dtype).to(where));
          if (r.c.defined()) loss = loss + sum(r.c * normal(r.c.shape(), 3, dtype).to(where));
          loss.backward();
          std::vector<Tensor> all{r.y, r.h, r.c};
          for (const Tensor& leaf : leaves.tensors) all.push_back(leaf.grad());
          for (const Tensor& t : statistics_list(statistics)) all.push_back(t);
          return all;
        };
        const auto a = go(cuda, device()), b = go(cpu, Device::cpu()), again = go(cuda, device());
        for (size_t i = 0; i < a.size(); ++i) {
          check_agreement("output " + std::to_string(i), a[i], b[i], agreement(dtype));
          if (a[i].defined()) CHECK(same_bits(a[i], again[i]));
        }
      }
}

TEST_CASE("CPU and GPU agree: random numbers, to the bit") {
  Rng a(5), b(5);
  CHECK(same_bits(bernoulli({1003}, 0.3, a, DType::u8, device()), bernoulli({1003}, 0.3, b)));
  CHECK(a.counter == b.counter);
}

TEST_CASE("CPU and GPU agree: casts, comparisons with numbers, finiteness") {
  const Tensor cpu = (normal({777}, 1, DType::f64) * 50.0).to(Device::cpu()), cuda = cpu.to(device());
  for (const DType dtype : {DType::f32, DType::i64}) CHECK(same_bits(cuda.cast(dtype), cpu.cast(dtype)));
  CHECK(same_bits(abs(cuda).cast(DType::u8), abs(cpu).cast(DType::u8)));
  using Compare = Tensor (*)(const Tensor&, double);
  for (const Compare compare : {Compare(eq), Compare(ne), Compare(lt), Compare(le), Compare(gt), Compare(ge)})
    CHECK(same_bits(compare(cuda, 3), compare(cpu, 3)));
  CHECK(all_finite(cuda));
  CHECK_FALSE(all_finite(concat({cuda, full({1}, NAN, DType::f64)})));
}

TEST_CASE("no op is left out above") {
  std::set<std::string> tested{"recurrent", "all_finite", "operator"};
  for (const OpCase& c : all_cases()) tested.insert(c.name);
  const std::regex declaration(R"((?:^|\n)(?:Tensor|bool|std::vector<Tensor>|RecurrentResult) (\w+)\()");
  int found = 0;
  for (const auto& file : std::filesystem::directory_iterator(LAMINA_SOURCE_DIR "/include/lamina/ops")) {
    const std::string text = support::get(file.path());
    for (std::sregex_iterator match(text.begin(), text.end(), declaration), end; match != end; ++match, ++found) {
      INFO((*match)[1] << " of " << file.path().filename().string());
      CHECK(tested.contains((*match)[1]));
    }
  }
  CHECK(found > 80);
}
