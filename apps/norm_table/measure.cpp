#include "norm_table/measure.h"

#include <algorithm>
#include <cmath>

#include <lamina/autograd/graph.h>
#include <lamina/core/random.h>
#include <lamina/nn/layers.h>
#include <lamina/nn/norm.h>
#include <lamina/ops/loss.h>
#include <lamina/ops/reduce.h>
#include <lamina/ops/shape_ops.h>
#include <lamina/optim/optimizer.h>

namespace lamina::norm_table {
namespace {

constexpr int64_t cases = 8, inputs = 10, units = 16, classes = 5;
constexpr int64_t length = 6;                          // of the sequences that instance norm needs
constexpr int64_t changed_unit = 3, changed_case = 2;  // of the re-scaled weight vector, of the re-scaled single case

// What the tables say: Layer Normalization's table 1; RMSNorm's copy of it has the two lines of its own. The others follow from the definitions:
// group norm sees what layer norm sees; instance norm's statistics are a case's and a channel's alone, so it has batch norm's answers and the single
// case too; mean-only batch norm divides by nothing, so that no scale is hidden, except that of the weights where weight norm hides it.
struct Expected {
  const char *norm, *source;
  std::array<bool, changes.size()> same;
};
constexpr bool y = true, n = false;
constexpr std::array<Expected, 10> expectations{{
    {"batch", "LN paper", {y, n, y, y, y, n}},
    {"weight", "LN paper", {y, n, y, n, n, n}},
    {"layer", "LN paper", {y, y, n, y, n, y}},
    {"rms", "RMSNorm paper", {y, n, n, y, n, y}},
    {"prms:0.25", "RMSNorm paper", {y, n, n, y, n, y}},
    {"group:4", "definition", {y, y, n, y, n, y}},
    {"instance", "definition", {y, n, y, y, y, y}},
    {"meanbatch", "definition", {n, n, n, n, y, n}},
    {"weight+meanbatch", "definition", {y, n, y, n, y, n}},
    {"none", "definition", {n, n, n, n, n, n}},
}};

// Linear without bias (a bias would not be scaled with the weights) -> norm -> ReLU -> Linear. Cases are [N, inputs], or [N, length, inputs] for
// instance norm, whose layer reads each position alike (a convolution of width 1) and normalises [N, units, length].
struct Net final : nn::Module {
  Net(const nn::NormSpec& spec, double eps)
      : linear(inputs, units, {.bias = false, .weight_norm = spec.weight}),
        norm(spec, {.builder = "norm_table", .features = units, .space = is_sequence(spec) ? 1 : 0}, {.eps = eps}),
        readout(units, classes, {.bias = false}) {}

  static bool is_sequence(const nn::NormSpec& spec) { return spec.kind == nn::NormSpec::Kind::instance; }
  void members(nn::Visitor& v) override {
    v("linear", linear);
    v("norm", norm);
    v("readout", readout);
  }

  Tensor layer(const Tensor& x) { return norm(x.rank() == 3 ? transpose(linear(x)) : linear(x)); }
  Tensor logits(const Tensor& x) {
    const Tensor h = relu(layer(x));
    return readout(h.rank() == 3 ? mean(h, {2}) : h);
  }
  // What the table calls the weights: under weight norm the vectors that it normalises.
  nn::Parameter& weights() { return linear.weight_norm.defined() ? linear.weight_norm.v : linear.weight; }

  nn::Linear linear;
  nn::Norm norm;
  nn::Linear readout;
};

struct Experiment {
  Net net;
  Tensor weights, x, labels;

  Experiment(const nn::NormSpec& spec, const Settings& settings) : net(spec, settings.eps) {
    net.init(settings.seed);
    net.cast(DType::f64);
    net.to(settings.device);
    Rng rng = Rng(settings.seed).stream("norm_table");
    for (const auto& [path, parameter] : net.named_parameters())  // gains and biases other than 1 and 0
      if (path.starts_with("norm.") || path == "linear.weight_g") parameter->set(rand(parameter->shape(), rng, DType::f64, 0.5, 1.5));
    weights = net.weights().value().clone();
    x = randn(Net::is_sequence(spec) ? Shape{cases, length, inputs} : Shape{cases, inputs}, rng, DType::f64, 0.3).to(settings.device);
    labels = randint({cases}, 0, classes, rng).to(settings.device);
  }

  Tensor output(const Tensor& w, const Tensor& data) {
    net.weights().set(w);
    return net.layer(data).detach();
  }
};

// `x` with its part `index` along the first axis times `factor`.
Tensor rescaled_part(const Tensor& x, int64_t index, double factor) {
  Tensor factors = Tensor::ones({x.size(0)}, x.dtype());
  factors.mutable_data<double>()[index] = factor;
  for (int axis = 1; axis < x.rank(); ++axis) factors = unsqueeze(factors, -1);
  return x * factors.to(x.device());
}

double deviation(const Tensor& changed, const Tensor& before) { return max(abs(changed - before)).item() / max(abs(before)).item(); }

// Of the gradient at weights w, and of what an SGD step makes of them.
struct Step {
  double gradient = 0;  // its length
  double turn = 0;      // the angle between the weights before and after
};

Step sgd_step(Experiment& experiment, const Tensor& w, double lr) {
  Net& net = experiment.net;
  net.weights().set(w);
  net.zero_grad();
  optim::SGD sgd(net.parameters(), {.lr = lr});
  cross_entropy(net.logits(experiment.x), experiment.labels).backward();
  const double gradient = norm(net.weights().grad()).item();
  const nn::StateDict before = [&] {
    nn::StateDict copy = net.state_dict();
    for (auto& [path, value] : copy) value = value.clone();
    return copy;
  }();
  sgd.step();
  const Tensor after = net.weights().value().detach();
  const double along = sum(w * after).item() / norm(w).item();
  const double across = norm(after - w * (sum(w * after).item() / sum(w * w).item())).item();
  net.load_state_dict(before);
  return {gradient, std::atan2(across, along)};
}

}  // namespace

std::vector<Row> invariances(const Settings& settings) {
  std::vector<Row> rows;
  for (const Expected& expected : expectations) {
    Experiment experiment(expected.norm, settings);
    const Tensor &w = experiment.weights, &x = experiment.x;
    Rng rng = Rng(settings.seed).stream("shifts");
    const Tensor shift = randn({inputs}, rng, DType::f64).to(settings.device);
    const std::array<std::pair<Tensor, Tensor>, changes.size()> changed{{
        {w * settings.factor, x},
        {w + shift, x},
        {rescaled_part(w, changed_unit, settings.factor), x},
        {w, x * settings.factor},
        {w, x + shift},
        {w, rescaled_part(x, changed_case, settings.factor)},
    }};
    const Tensor before = experiment.output(w, x);
    Row row{expected.norm, expected.source, {}};
    for (size_t i = 0; i < changes.size(); ++i)
      row.cells[i] = {deviation(experiment.output(changed[i].first, changed[i].second), before), expected.same[i]};
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Growth> growths(const Settings& settings) {
  // The step at s = 1 turns the weights by this angle: so little that angles add up like lengths.
  constexpr double first_turn = 1e-4;
  std::vector<Growth> rows;
  for (const Expected& expected : expectations) {
    Experiment experiment(expected.norm, settings);
    const Tensor &w = experiment.weights, &x = experiment.x;
    const double lr = first_turn * norm(w).item() / sgd_step(experiment, w, 0.0).gradient;
    const Step first = sgd_step(experiment, w, lr);
    const Tensor before = experiment.output(w, x);
    for (const double scale : {0.3, 3.0, 10.0}) {
      const Step step = sgd_step(experiment, w * scale, lr);
      rows.push_back({expected.norm, scale, expected.same[0], deviation(experiment.output(w * scale, x), before), step.gradient / first.gradient,
                      step.turn / first.turn});
    }
  }
  return rows;
}

bool Growth::agrees() const {
  constexpr double rounding = 1e-9, small_angle = 1e-5;  // an angle of 1e-4/0.3^2 differs from its tangent by less
  if (!invariant) return deviation > Cell::different;
  return deviation < Cell::same && std::abs(gradient_ratio * scale - 1) < rounding && std::abs(turn_ratio * scale * scale - 1) < small_angle;
}

}  // namespace lamina::norm_table
