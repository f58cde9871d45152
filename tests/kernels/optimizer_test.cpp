// Optimiser updates against the published formulas in double, and worked values.

#include "kernels/kernels.h"
#include "kernels/vectors.h"

using namespace lamina;
using namespace lamina::test;
using namespace lamina::kernels;

namespace {

constexpr double f32_tolerance = 1e-6;  // a dozen roundings of 6e-8 on values of order 1
constexpr double f64_tolerance = 1e-14;
constexpr double written = 1e-6;  // worked values have six digits or so

template <class T>
const OptimizerKernels<T>& kernels_of() {
  return CpuBackend::optimizer<T>();
}

/// Update rules with what belongs to an item.
struct Sgd {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, first = false;
};
struct AdamRule {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;
};

template <class T>
void sgd(const StepState* state, const Sgd& rule, int64_t n, T* p, const T* g, T* velocity) {
  const OptimizerItem<T> item{.n = n, .p = p, .g = g, .first = velocity, .weight_decay = rule.weight_decay, .fresh = rule.first};
  kernels_of<T>().sgd(state, {.momentum = rule.momentum, .dampening = rule.dampening, .nesterov = rule.nesterov}, std::span(&item, 1));
}
template <class T>
void adam(const StepState* state, const AdamRule& rule, int64_t n, T* p, const T* g, T* m, T* v) {
  const OptimizerItem<T> item{.n = n, .p = p, .g = g, .first = m, .second = v, .weight_decay = rule.weight_decay};
  kernels_of<T>().adam(state, {.beta1 = rule.beta1, .beta2 = rule.beta2, .eps = rule.eps, .decoupled = rule.decoupled}, std::span(&item, 1));
}

// One parameter through a sequence of gradients, in double.
std::vector<double> sgd_path(Sgd spec, double lr, double p, const std::vector<double>& gradients) {
  std::vector<double> path;
  double velocity = 77;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const StepState state{.t = static_cast<int64_t>(i) + 1, .lr = lr};
    spec.first = i == 0;
    sgd(&state, spec, 1, &p, &gradients[i], spec.momentum != 0 ? &velocity : nullptr);
    path.push_back(p);
  }
  return path;
}

std::vector<double> adam_path(const AdamRule& spec, double lr, double p, const std::vector<double>& gradients) {
  std::vector<double> path;
  double m = 0, v = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const StepState state{.t = static_cast<int64_t>(i) + 1, .lr = lr};
    adam(&state, spec, 1, &p, &gradients[i], &m, &v);
    path.push_back(p);
  }
  return path;
}

template <class T>
void sgd_reference(const StepState& state, const Sgd& s, std::vector<double>& p, const std::vector<T>& g, std::vector<double>& velocity) {
  for (size_t i = 0; i < p.size(); ++i) {
    double d = static_cast<double>(g[i]) * state.grad_scale + s.weight_decay * p[i];
    if (s.momentum != 0) {
      velocity[i] = s.first ? d : s.momentum * velocity[i] + (1 - s.dampening) * d;
      d = s.nesterov ? d + s.momentum * velocity[i] : velocity[i];
    }
    p[i] -= state.lr * d;
  }
}

template <class T>
void adam_reference(const StepState& state, const AdamRule& s, std::vector<double>& p, const std::vector<T>& g, std::vector<double>& m,
                    std::vector<double>& v) {
  const double t = static_cast<double>(state.t);
  for (size_t i = 0; i < p.size(); ++i) {
    double d = static_cast<double>(g[i]) * state.grad_scale;
    if (s.decoupled)
      p[i] *= 1 - state.lr * s.weight_decay;
    else
      d += s.weight_decay * p[i];
    m[i] = s.beta1 * m[i] + (1 - s.beta1) * d;
    v[i] = s.beta2 * v[i] + (1 - s.beta2) * d * d;
    p[i] -= state.lr * (m[i] / (1 - std::pow(s.beta1, t))) / (std::sqrt(v[i] / (1 - std::pow(s.beta2, t))) + s.eps);
  }
}

template <class T>
void check_against_references(double tolerance) {
  const std::vector<Sgd> sgd_specs = {
      {}, {.weight_decay = 0.1}, {.momentum = 0.9}, {.momentum = 0.8, .dampening = 0.3, .weight_decay = 0.05}, {.momentum = 0.9, .nesterov = true}};
  const std::vector<AdamRule> adam_specs = {
      {}, {.weight_decay = 0.1}, {.weight_decay = 0.1, .decoupled = true}, {.beta1 = 0.5, .beta2 = 0.9, .eps = 0.1}};
  for (int64_t n : {0, 1, 3, 16, 33, 1000, 70001}) {
    for (Sgd spec : sgd_specs) {
      auto p = normal_vector<T>(n, 1);
      std::vector<T> velocity(p.size(), T(77));
      auto p_ref = as_double(p), velocity_ref = as_double(velocity);
      for (int64_t t = 1; t <= 3; ++t) {
        const StepState state{.t = t, .lr = 0.1, .grad_scale = 0.5};
        spec.first = t == 1;
        const auto g = normal_vector<T>(n, static_cast<uint64_t>(t) + 10);
        sgd<T>(&state, spec, n, p.data(), g.data(), spec.momentum != 0 ? velocity.data() : nullptr);
        sgd_reference(state, spec, p_ref, g, velocity_ref);
      }
      REQUIRE(first_difference(p, p_ref, tolerance) == "");
      REQUIRE(first_difference(velocity, velocity_ref, tolerance) == "");
    }
    for (const AdamRule& spec : adam_specs) {
      auto p = normal_vector<T>(n, 2);
      std::vector<T> m(p.size()), v(p.size());
      auto p_ref = as_double(p), m_ref = as_double(m), v_ref = as_double(v);
      for (int64_t t = 1; t <= 3; ++t) {
        const StepState state{.t = t, .lr = 0.01, .grad_scale = 2};
        const auto g = normal_vector<T>(n, static_cast<uint64_t>(t) + 20);
        adam<T>(&state, spec, n, p.data(), g.data(), m.data(), v.data());
        adam_reference(state, spec, p_ref, g, m_ref, v_ref);
      }
      REQUIRE(first_difference(p, p_ref, tolerance) == "");
      REQUIRE(first_difference(m, m_ref, tolerance) == "");
      REQUIRE(first_difference(v, v_ref, tolerance) == "");
    }
  }
}

}  // namespace

TEST_CASE("optimizer: three steps meet the formulas, all lengths") {
  check_against_references<float>(f32_tolerance);
  check_against_references<double>(f64_tolerance);
}

TEST_CASE("adam: eps outside the root, after the bias correction (D01)") {
  CHECK(adam_path({}, 1e-3, 0, {1e-8})[0] == Approx(-5.0e-4).epsilon(1e-9));
  // A first step of any size moves by lr; in f32 squares of 1e-19 vanish, which must not give NaN.
  float p = 0, m = 0, v = 0;
  const float g = 1e-25F;
  const StepState state{.t = 1, .lr = 1e-3};
  adam(&state, {}, 1, &p, &g, &m, &v);
  CHECK(std::isfinite(p));
}

TEST_CASE("adam: steps are counted from 1 (D02)") {
  CHECK(first_difference(adam_path({}, 1e-3, 0, {1, 1, 1}), std::vector<double>{-0.001, -0.002, -0.003}, 1e-10) == "");
  CHECK(first_difference(adam_path({}, 0.1, 0, {1, -1, 0.5}), std::vector<double>{-0.1, -0.0947368, -0.1122094}, written) == "");
}

TEST_CASE("adam: decoupled and coupled weight decay (D03)") {
  CHECK(adam_path({.weight_decay = 0.01, .decoupled = true}, 0.1, 1, {0.5})[0] == Approx(0.899000002).epsilon(1e-9));
  CHECK(adam_path({.weight_decay = 0.01}, 0.1, 1, {0.5})[0] == Approx(0.900000002).epsilon(1e-9));
  CHECK(first_difference(adam_path({.weight_decay = 0.1, .decoupled = true}, 0.1, 1, {0.5, 0.5, 0.5}), std::vector<double>{0.89, 0.7811, 0.673289},
                         written) == "");
}

TEST_CASE("sgd: momentum and Nesterov (D05)") {
  CHECK(first_difference(sgd_path({.momentum = 0.9, .nesterov = true}, 0.1, 0, {1, 1, 1}), std::vector<double>{-0.19, -0.461, -0.8049},
                         f64_tolerance) == "");
  CHECK(first_difference(sgd_path({.momentum = 0.9}, 0.1, 0, {1, 1, 1}), std::vector<double>{-0.1, -0.29, -0.561}, f64_tolerance) == "");
}

TEST_CASE("optimizer: a zero gradient still decays and coasts (D07)") {
  CHECK(first_difference(sgd_path({.momentum = 0.9, .weight_decay = 0.1}, 0.1, 1, {1, 0}), std::vector<double>{0.89, 0.7821}, f64_tolerance) == "");
  CHECK(first_difference(adam_path({.weight_decay = 0.1, .decoupled = true}, 0.1, 1, {1, 0}), std::vector<double>{0.89, 0.8140942}, written) == "");
}

TEST_CASE("optimizer: a step that was found not finite leaves everything as it is") {
  const StepState state{.t = 1, .lr = 0.1, .finite = 0};
  const auto start = normal_vector<float>(100, 3), g = std::vector<float>(100, NAN);
  auto p = start, m = start, v = start;
  adam(&state, {.weight_decay = 0.1, .decoupled = true}, 100, p.data(), g.data(), m.data(), v.data());
  sgd(&state, {.momentum = 0.9, .first = true}, 100, p.data(), g.data(), v.data());
  CHECK((p == start && m == start && v == start));
}

TEST_CASE("optimizer: the same bits for every thread count") {
  const int64_t n = 100003;
  const auto g = normal_vector<float>(n, 4);
  const StepState state{.t = 3, .lr = 0.01};
  CHECK(same_bits_for_all_thread_counts([&] {
    auto p = normal_vector<float>(n, 5), m = normal_vector<float>(n, 6), v = std::vector<float>(static_cast<size_t>(n), 0.3F);
    adam(&state, {}, n, p.data(), g.data(), m.data(), v.data());
    sgd(&state, {.momentum = 0.9, .nesterov = true}, n, p.data(), g.data(), m.data());
    append(p, m);
    append(p, v);
    return p;
  }));
}

TEST_CASE("optimizer: items have factors and step counts of their own") {
  const StepState state{.t = 5, .lr = 0.1, .grad_scale = 0.5};
  const std::vector<double> g{1, -2};
  std::vector<double> p{1, 1}, m(2), v(2), q{1, 1}, m_q(2), v_q(2);
  const std::vector<OptimizerItem<double>> items{
      {.n = 2, .p = p.data(), .g = g.data(), .first = m.data(), .second = v.data(), .lr_factor = 0.1, .grad_scale = 4, .missed = 3}};
  kernels_of<double>().adam(&state, {}, items);
  const StepState alone{.t = 2, .lr = 0.01, .grad_scale = 2};
  adam<double>(&alone, {}, 2, q.data(), g.data(), m_q.data(), v_q.data());
  CHECK(p[0] < 1);
  CHECK(first_difference(p, q, f64_tolerance) == "");
  CHECK(first_difference(v, v_q, f64_tolerance) == "");
}
