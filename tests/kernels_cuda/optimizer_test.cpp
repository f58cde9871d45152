// Optimiser updates on CUDA against the CPU's.

#include <memory>
#include <span>

#include "kernels/cuda/backend.h"
#include "kernels/kernels.h"
#include "kernels/vectors.h"
#include "kernels_cuda/device_array.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

// Both sides do the same operations in the same order; the powers in double, the fused multiply-adds (which a CPU may lack) and the division may
// differ by a rounding each, of values of order 1.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 5e-7 : 1e-15;

template <class T>
struct State {
  std::vector<T> p, a, b;  // a and b: velocity, or the moments
  explicit State(int64_t n, uint64_t seed)
      : p(normal_vector<T>(n, seed)), a(normal_vector<T>(n, seed + 1, 0, 0.1)), b(normal_vector<T>(n, seed + 2)) {
    for (T& v : b) v = v * v;
  }
};

struct SgdCase {
  SgdSpec spec;
  double decay = 0;
  bool fresh = false;
};
std::vector<SgdCase> sgd_cases() {
  return {{{}},
          {{}, 0.1},
          {{.momentum = 0.9}},
          {{.momentum = 0.8, .dampening = 0.3}, 0.05},
          {{.momentum = 0.9, .nesterov = true}},
          {{.momentum = 0.9}, 0, true}};
}
struct AdamCase {
  AdamSpec spec;
  double decay = 0;
};
std::vector<AdamCase> adam_cases() { return {{{}}, {{}, 0.1}, {{.decoupled = true}, 0.1}, {{.beta1 = 0.5, .beta2 = 0.9, .eps = 0.1}}}; }

template <class T>
void check_same(const State<T>& have, const State<T>& expected) {
  REQUIRE(first_difference(have.p, expected.p, tolerance<T>) == "");
  REQUIRE(first_difference(have.a, expected.a, tolerance<T>) == "");
  REQUIRE(first_difference(have.b, expected.b, tolerance<T>) == "");
}

/// Parameters of these lengths, with what belongs to each, on both sides. The device's arrays begin `shift` elements after a boundary.
template <class T>
class Both {
 public:
  Both(const std::vector<int64_t>& lengths, size_t shift, double decay, bool velocity, bool fresh) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t n = lengths[i];
      State<T>& state = *states_.emplace_back(std::make_unique<State<T>>(n, 10 * i));
      starts_.push_back(state);
      const std::vector<T>& g = *gradients_.emplace_back(std::make_unique<std::vector<T>>(normal_vector<T>(n, 10 * i + 5)));
      const auto on_device = [&](const std::vector<T>& values) {
        return arrays_.emplace_back(std::make_unique<DeviceArray<T>>(values, shift))->data();
      };
      OptimizerItem<T> item{.n = n,
                            .p = state.p.data(),
                            .g = g.data(),
                            .first = velocity ? state.a.data() : nullptr,
                            .second = state.b.data(),
                            .lr_factor = 1 + 0.1 * static_cast<double>(i % 3),
                            .grad_scale = 0.5,
                            .weight_decay = i % 2 == 0 ? decay : 0,
                            .missed = static_cast<int64_t>(i % 2),
                            .fresh = fresh};
      host.push_back(item);
      item.p = on_device(state.p);
      item.first = on_device(state.a);
      item.second = on_device(state.b);
      item.g = on_device(g);
      if (!velocity) item.first = nullptr;
      device.push_back(item);
    }
  }

  /// The same on both sides; and something happened, or nothing at all.
  void check(bool changed) {
    for (size_t i = 0; i < host.size(); ++i) {
      const State<T>& expected = *states_[i];
      State<T> have = expected;
      have.p = arrays_[4 * i]->host();
      have.a = arrays_[4 * i + 1]->host();
      have.b = arrays_[4 * i + 2]->host();
      INFO("item " << i << " of " << host[i].n);
      check_same(have, expected);
      if (changed && host[i].n > 0) REQUIRE(have.p != starts_[i].p);
      if (!changed) REQUIRE((have.p == starts_[i].p && have.a == starts_[i].a && have.b == starts_[i].b));
    }
  }

  std::vector<OptimizerItem<T>> host, device;

 private:
  std::vector<std::unique_ptr<State<T>>> states_;
  std::vector<State<T>> starts_;
  std::vector<std::unique_ptr<std::vector<T>>> gradients_;
  std::vector<std::unique_ptr<DeviceArray<T>>> arrays_;  // p, a, b, g of each
};

template <class T>
void check_sgd(const std::vector<int64_t>& lengths, size_t shift, const SgdCase& c, const StepState& step) {
  Both<T> both(lengths, shift, c.decay, c.spec.momentum != 0, c.fresh);
  const DeviceArray<StepState> state(std::vector<StepState>{step});
  CpuBackend::optimizer<T>().sgd(&step, c.spec, both.host);
  CudaBackend::optimizer<T>().sgd(state.data(), c.spec, both.device);
  both.check(step.finite != 0);
}
template <class T>
void check_adam(const std::vector<int64_t>& lengths, size_t shift, const AdamCase& c, const StepState& step) {
  Both<T> both(lengths, shift, c.decay, true, false);
  const DeviceArray<StepState> state(std::vector<StepState>{step});
  CpuBackend::optimizer<T>().adam(&step, c.spec, both.host);
  CudaBackend::optimizer<T>().adam(state.data(), c.spec, both.device);
  both.check(step.finite != 0);
}

const StepState third{.t = 3, .lr = 0.01, .grad_scale = 0.5};

template <class T>
StepState inspected(StepState state, const std::vector<std::vector<T>>& gradients, T loss, double items, double max_norm, bool check,
                    size_t shift = 0) {
  std::vector<std::unique_ptr<DeviceArray<T>>> arrays;
  std::vector<StepKernels::Gradient<T>> list;
  for (const auto& g : gradients)
    list.push_back({static_cast<int64_t>(g.size()), arrays.emplace_back(std::make_unique<DeviceArray<T>>(g, shift))->data()});
  const DeviceArray<T> on_device(std::vector<T>{loss});
  const DeviceArray<StepState> there(std::vector<StepState>{state});
  StepKernels::Inspection what{.max_norm = max_norm, .check = check, .items = items};
  if constexpr (sizeof(T) == 4) {
    what.f32 = list;
    what.loss_f32 = on_device.data();
  } else {
    what.f64 = list;
    what.loss_f64 = on_device.data();
  }
  CudaBackend::step().inspect(there.data(), what);
  return there.host()[0];
}

}  // namespace

TEST_CASE("cuda optimizer: all lengths, aligned and not, several parameters in one launch") {
  const std::vector<int64_t> lengths{0, 1, 3, 4, 33, 1000, 4096, 4097, 9001};
  for (const size_t shift : {0, 1}) {
    INFO("shift " << shift);
    for (const SgdCase& c : sgd_cases()) {
      check_sgd<float>(lengths, shift, c, third);
      check_sgd<double>({0, 5, 2048, 2049}, shift, c, third);
    }
    for (const AdamCase& c : adam_cases()) {
      check_adam<float>(lengths, shift, c, third);
      check_adam<double>({0, 5, 2048, 2049}, shift, c, third);
    }
  }
  check_adam<float>({}, 0, {}, third);
  check_adam<float>({0, 0}, 0, {}, third);
}

TEST_CASE("cuda optimizer: more parameters than a small argument holds, and than a large one does") {
  for (const size_t count : {41, 400}) {
    std::vector<int64_t> lengths;
    for (size_t i = 0; i < count; ++i) lengths.push_back(static_cast<int64_t>(i % 4));
    check_adam<float>(lengths, 0, {}, third);
  }
}

TEST_CASE("cuda adam: worked values (D01, D02, D03)") {
  const auto step_of = [](const AdamCase& c, double lr, double p0, double g0) {
    const DeviceArray<double> p(std::vector<double>{p0}), g(std::vector<double>{g0}), m(std::vector<double>{0}), v(std::vector<double>{0});
    const DeviceArray<StepState> state(std::vector<StepState>{{.t = 1, .lr = lr}});
    const OptimizerItem<double> item{.n = 1, .p = p.data(), .g = g.data(), .first = m.data(), .second = v.data(), .weight_decay = c.decay};
    CudaBackend::optimizer<double>().adam(state.data(), c.spec, std::span(&item, 1));
    return p.host()[0];
  };
  CHECK(step_of({}, 1e-3, 0, 1e-8) == Approx(-5.0e-4).epsilon(1e-9));
  CHECK(step_of({}, 1e-3, 0, 1) == Approx(-0.001).epsilon(1e-7));
  CHECK(step_of({{.decoupled = true}, 0.01}, 0.1, 1, 0.5) == Approx(0.899000002).epsilon(1e-9));
  CHECK(step_of({{}, 0.01}, 0.1, 1, 0.5) == Approx(0.900000002).epsilon(1e-9));
}

TEST_CASE("cuda optimizer: a step that was found not finite leaves everything as it is") {
  const StepState step{.t = 1, .lr = 0.1, .finite = 0};
  check_adam<float>({100, 7}, 0, {{.decoupled = true}, 0.1}, step);
  check_sgd<float>({100, 7}, 0, {{.momentum = 0.9}, 0, true}, step);
}

TEST_CASE("cuda step: the joint norm gives the scale, losses are added up, steps are counted") {
  const StepState start{.t = 4, .lr = 0.5, .loss_sum = 10};
  const auto long_one = normal_vector<float>(9001, 3);
  double squares = 9 + 16;
  for (const float g : long_one) squares += static_cast<double>(g) * static_cast<double>(g);
  for (const size_t shift : {0, 1}) {
    const StepState clipped = inspected<float>(start, {{3, 4}, {}, long_one}, 1.5F, 8, 2, false, shift);
    CHECK(clipped.grad_scale == Approx(2 / (std::sqrt(squares) + 1e-6)).epsilon(1e-12));
    CHECK((clipped.t == 5 && clipped.finite == 1 && clipped.loss == 1.5 && clipped.loss_sum == 22 && clipped.lr == 0.5));
  }
  CHECK(inspected<double>(start, {{3, 4}}, 1.0, 1, 1, true).grad_scale == Approx(1 / 5.000001).epsilon(1e-14));
  CHECK(inspected<double>(start, {{3, 4}}, 1.0, 1, 6, false).grad_scale == 1);
  CHECK(inspected<double>({.grad_scale = 0.1}, {{3, 4}}, 1.0, 1, 0, false).grad_scale == 1);
  CHECK(inspected<float>(start, {}, 1.0F, 2, 1, true).t == 5);  // no gradients at all
  const std::vector<std::vector<double>> many(400, std::vector<double>{1});
  CHECK(inspected<double>(start, many, 1.0, 1, 1, false).grad_scale == Approx(1 / 20.000001).epsilon(1e-14));
  const std::vector<std::vector<double>> too_many(2000, std::vector<double>{1});
  CHECK(inspected<double>(start, too_many, 1.0, 1, 1, false).grad_scale == Approx(1 / (std::sqrt(2000.0) + 1e-6)).epsilon(1e-14));
}

TEST_CASE("cuda step: what is not finite stops it, and every one after it") {
  const StepState start{.t = 4, .lr = 0.5, .loss_sum = 10};
  const float inf = HUGE_VALF;
  const StepState at_loss = inspected<float>(start, {{1, 2}}, NAN, 8, 0, false);
  CHECK((at_loss.finite == 0 && at_loss.at_loss == 1 && at_loss.t == 4 && at_loss.loss_sum == 10 && std::isnan(at_loss.loss)));
  for (const float bad : {inf, -inf, NAN}) {
    std::vector<float> g(5000, 0.1F);
    g[4999] = bad;
    const StepState checked = inspected<float>(start, {{1}, g}, 2, 8, 0, true);
    CHECK((checked.finite == 0 && checked.at_loss == 0 && checked.t == 4 && checked.loss == 2 && checked.loss_sum == 10));
    CHECK(inspected<float>(start, {{1}, g}, 2, 8, 1, false).finite == 0);
    CHECK(inspected<float>(start, {{1}, g}, 2, 8, 0, false).t == 5);  // nobody asked
  }
  const StepState after = inspected<float>(at_loss, {{1, 2}}, 1, 8, 1, true);
  CHECK((after.finite == 0 && after.at_loss == 1 && after.t == 4 && std::isnan(after.loss)));
  // Squares of f64 may overflow where no element is infinite: the norm is then not finite, as on the CPU.
  CHECK(inspected<double>(start, {{1e200, 1}}, 1, 1, 1, false).finite == 0);
  CHECK(inspected<double>(start, {{1e200, 1}}, 1, 1, 0, true).finite == 1);
}
