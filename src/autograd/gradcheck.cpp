#include <lamina/autograd/gradcheck.h>
#include <lamina/autograd/graph.h>
#include <lamina/core/random.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/format.h"
#include "core/tensor_impl.h"
#include "kernels/kernels.h"

namespace lamina {

namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

double inner_product(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Device::cpu()), y = b.to(Device::cpu());
  const double *xs = x.data<double>(), *ys = y.data<double>();
  long double sum = 0;  // the difference of two losses loses digits: carry more of them
  for (int64_t i = 0; i < x.numel(); ++i) sum += static_cast<long double>(xs[i]) * ys[i];
  return static_cast<double>(sum);
}

/// One element, which may be on a GPU.
class Element {
 public:
  Element(Tensor& tensor, int64_t at) : tensor_(tensor), at_(at) {}
  double get() const {
    double value = 0;
    kernels::move(tensor_.device())->copy(sizeof value, tensor_.data<double>() + at_, &value);
    return value;
  }
  void set(double value) const { kernels::move(tensor_.device())->copy(sizeof value, &value, tensor_.mutable_data<double>() + at_); }

 private:
  Tensor& tensor_;
  int64_t at_;
};

struct Mismatch {
  size_t input;
  int64_t coordinate;
  double numeric, analytic, error;
};

class Checker {
 public:
  Checker(const Function& fn, std::vector<Tensor> inputs, const GradcheckOptions& options) : fn_(fn), inputs_(std::move(inputs)), options_(options) {
    if (!grad_enabled()) fail("gradcheck", "expected a call where gradients are recorded, got one under NoGrad");
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].dtype() != DType::f64) fail("gradcheck", "{}: expected f64, got {}", name(i), inputs_[i].dtype());
      inputs_[i] = inputs_[i].clone();  // the caller's tensors stay as they are
      inputs_[i].set_requires_grad();
    }
    const Tensor y = fn_(inputs_);
    if (y.dtype() != DType::f64) fail("gradcheck", "the function's result: expected f64, got {}", y.dtype());
    Rng rng(options_.seed);
    cotangent_ = randn(y.shape(), rng, DType::f64).to(y.device());
  }

  GradcheckResult run() {
    GradcheckResult result;
    result.ok = true;
    const std::vector<Tensor> analytic = gradients(false);
    for (size_t i = 0; i < inputs_.size(); ++i) check_input(i, analytic[i], result);
    check_reuse(analytic, result);
    check_frozen(analytic, result);
    std::ranges::sort(mismatches_, std::ranges::greater{}, &Mismatch::error);
    for (size_t i = 0; i < std::min<size_t>(mismatches_.size(), 5); ++i) {
      const Mismatch& m = mismatches_[i];
      result.message += fmt::format("{} {} element {}: numeric {:.10g}, analytic {:.10g}, relative error {:.3g}\n", name(m.input),
                                    inputs_[m.input].shape(), m.coordinate, m.numeric, m.analytic, m.error);
    }
    return result;
  }

 private:
  std::string name(size_t input) const { return input < options_.names.size() ? options_.names[input] : fmt::format("input {}", input); }

  double loss() {
    const NoGrad no_grad;
    return inner_product(fn_(inputs_), cotangent_);
  }

  /// With `reused`, inputs pass through an identity op and the graph runs backward twice.
  std::vector<Tensor> gradients(bool reused) {
    std::vector<Tensor> arguments = inputs_;
    if (reused) {
      for (Tensor& argument : arguments) {
        const Tensor input = argument;
        argument = autograd::record("gradcheck_identity", {input}, input.clone(), {}, [](autograd::Backward& b) { b.give(0, b.dy()); });
      }
    }
    for (Tensor& input : inputs_) input.zero_grad();
    const Tensor y = fn_(arguments);
    if (y.requires_grad()) y.backward(cotangent_, reused);
    // A second pass over the same graph must add the same gradient again, from saved state that the first pass left intact.
    if (reused && y.requires_grad()) y.backward(cotangent_);
    std::vector<Tensor> result;
    for (const Tensor& input : inputs_) result.push_back(input.grad().defined() ? input.grad().to(Device::cpu()) : Tensor());
    return result;
  }

  double numeric(size_t input, int64_t coordinate) {
    const Element value(inputs_[input], coordinate);
    const double saved = value.get();
    const double step = options_.step * std::max(1.0, std::abs(saved));
    // Differences of what is representable, not of the wished-for step.
    const double high = saved + step, low = saved - step;
    value.set(high);
    const double above = loss();
    value.set(low);
    const double below = loss();
    value.set(saved);
    return (above - below) / (high - low);
  }

  void check_input(size_t i, const Tensor& analytic, GradcheckResult& result) {
    const int64_t count = inputs_[i].numel();
    if (count == 0) return;
    std::vector<int64_t> coordinates(static_cast<size_t>(count));
    for (int64_t c = 0; c < count; ++c) coordinates[static_cast<size_t>(c)] = c;
    if (count > options_.max_coordinates) {
      Rng rng = Rng(options_.seed).stream(fmt::format("coordinates of input {}", i));
      coordinates = randperm(count, rng).to_vector<int64_t>();
      coordinates.resize(static_cast<size_t>(options_.max_coordinates));
    }
    std::vector<double> numbers;
    double norm = 0;
    for (const int64_t c : coordinates) {
      numbers.push_back(numeric(i, c));
      norm += numbers.back() * numbers.back();
    }
    norm = std::sqrt(norm);
    if (!options_.expect_zero && !(norm >= options_.min_norm)) {
      result.ok = false;
      result.message += fmt::format("{} {}: the numeric gradient is zero (norm {:.3g}), so nothing is tested\n", name(i), inputs_[i].shape(), norm);
    }
    const double typical = norm / std::sqrt(static_cast<double>(coordinates.size()));
    for (size_t k = 0; k < coordinates.size(); ++k) {
      const double have = analytic.defined() ? analytic.data<double>()[coordinates[k]] : 0.0;
      const double scale = std::max({std::abs(numbers[k]), std::abs(have), typical});
      const double difference = std::abs(numbers[k] - have);
      // A gradient that is not a number is infinitely wrong; NaN itself could not be sorted.
      const double error = std::isnan(difference) ? std::numeric_limits<double>::infinity() : scale > 0 ? difference / scale : 0.0;
      result.worst_error = std::max(result.worst_error, error);
      if (difference <= options_.atol + options_.rtol * scale) continue;  // false for NaN
      result.ok = false;
      mismatches_.push_back({i, coordinates[k], numbers[k], have, error});
    }
  }

  static bool nearly(const Tensor& a, const Tensor& b, double factor) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    for (int64_t i = 0; i < a.numel(); ++i) {
      const double x = a.data<double>()[i] * factor, y = b.data<double>()[i];
      if (!(std::abs(x - y) <= 1e-12 + 1e-10 * std::max(std::abs(x), std::abs(y)))) return false;
    }
    return true;
  }

  void check_reuse(const std::vector<Tensor>& analytic, GradcheckResult& result) {
    const std::vector<Tensor> twice = gradients(true);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (nearly(analytic[i], twice[i], 2.0)) continue;
      result.ok = false;
      result.message += fmt::format("{}: two backward passes over one graph did not add up to twice the gradient\n", name(i));
    }
  }

  void check_frozen(const std::vector<Tensor>& analytic, GradcheckResult& result) {
    for (size_t frozen = 0; frozen < inputs_.size() && inputs_.size() > 1; ++frozen) {
      inputs_[frozen].set_requires_grad(false);
      const std::vector<Tensor> others = gradients(false);
      inputs_[frozen].set_requires_grad(true);
      for (size_t i = 0; i < inputs_.size(); ++i) {
        if (i == frozen ? !others[i].defined() : nearly(analytic[i], others[i], 1.0)) continue;
        result.ok = false;
        result.message += fmt::format("{}: its gradient changes when {} needs none\n", name(i), name(frozen));
      }
    }
  }

  const Function& fn_;
  std::vector<Tensor> inputs_;
  GradcheckOptions options_;
  Tensor cotangent_;
  std::vector<Mismatch> mismatches_;
};

}  // namespace

GradcheckResult gradcheck(const Function& fn, std::vector<Tensor> inputs, GradcheckOptions options) {
  return Checker(fn, std::move(inputs), options).run();
}

}  // namespace lamina
