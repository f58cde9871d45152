// Optimiser updates on CUDA against the CPU's.

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

std::vector<SgdSpec> sgd_specs() {
  return {{},
          {.weight_decay = 0.1},
          {.momentum = 0.9},
          {.momentum = 0.8, .dampening = 0.3, .weight_decay = 0.05},
          {.momentum = 0.9, .nesterov = true},
          {.momentum = 0.9, .first = true}};
}
std::vector<AdamSpec> adam_specs() {
  return {{}, {.weight_decay = 0.1}, {.weight_decay = 0.1, .decoupled = true}, {.beta1 = 0.5, .beta2 = 0.9, .eps = 0.1}};
}

template <class T>
void check_same(const State<T>& have, const State<T>& expected) {
  REQUIRE(first_difference(have.p, expected.p, tolerance<T>) == "");
  REQUIRE(first_difference(have.a, expected.a, tolerance<T>) == "");
  REQUIRE(first_difference(have.b, expected.b, tolerance<T>) == "");
}

// update(kernels, state, p, a, b) on both sides: the same state must come out. The device's arrays begin `shift` elements after a boundary.
template <class T, class Update>
void check_update(const State<T>& start, const StepState& step, size_t shift, Update&& update) {
  State<T> expected = start, have = start;
  update(CpuBackend::optimizer<T>(), &step, expected.p.data(), expected.a.data(), expected.b.data(), false);
  const DeviceArray<StepState> device_step(std::vector<StepState>{step});
  const DeviceArray<T> p(start.p, shift), a(start.a, shift), b(start.b, shift);
  update(CudaBackend::optimizer<T>(), device_step.data(), p.data(), a.data(), b.data(), true);
  have.p = p.host();
  have.a = a.host();
  have.b = b.host();
  check_same(have, expected);
  if (!start.p.empty() && step.finite) REQUIRE(have.p != start.p);
  if (!step.finite) REQUIRE((have.p == start.p && have.a == start.a && have.b == start.b));
}

template <class T>
void check_from_memory(int64_t n, size_t shift) {
  const State<T> start(n, 1);
  const auto g = normal_vector<T>(n, 9);
  const DeviceArray<T> device_g(g, shift);
  const StepState step{.t = 3, .lr = 0.01, .grad_scale = 0.5};
  INFO(n << " elements, shift " << shift);
  for (const SgdSpec& spec : sgd_specs())
    check_update(start, step, shift, [&](const auto& kernels, const StepState* state, T* p, T* a, T*, bool device) {
      kernels.sgd(state, spec, n, p, device ? device_g.data() : g.data(), spec.momentum != 0 ? a : nullptr);
    });
  for (const AdamSpec& spec : adam_specs())
    check_update(start, step, shift, [&](const auto& kernels, const StepState* state, T* p, T* a, T* b, bool device) {
      kernels.adam(state, spec, n, p, device ? device_g.data() : g.data(), a, b);
    });
}

template <class T>
void check_from_product(int64_t out, int64_t in, int rows, size_t shift) {
  const State<T> start(out * in, 2);
  const auto dy = normal_vector<T>(rows * out, 3), x = normal_vector<T>(rows * in, 4);
  const DeviceArray<T> device_dy(dy), device_x(x, shift);
  const auto product = [&](const T* dys, const T* xs) {
    RankUpdate<T> g{.out = out, .in = in, .rows = rows};
    for (int r = 0; r < rows; ++r) {
      g.dy[static_cast<size_t>(r)] = dys + r * out;
      g.x[static_cast<size_t>(r)] = xs + r * in;
    }
    return g;
  };
  const StepState step{.t = 2, .lr = 0.1, .grad_scale = 0.25};
  INFO("[" << out << ", " << in << "] from " << rows << " rows, shift " << shift);
  for (const SgdSpec& spec : {SgdSpec{}, SgdSpec{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}})
    check_update(start, step, shift, [&](const auto& kernels, const StepState* state, T* p, T* a, T*, bool device) {
      kernels.sgd(state, spec, product(device ? device_dy.data() : dy.data(), device ? device_x.data() : x.data()), p,
                  spec.momentum != 0 ? a : nullptr);
    });
  for (const AdamSpec& spec : {AdamSpec{}, AdamSpec{.weight_decay = 0.1, .decoupled = true}})
    check_update(start, step, shift, [&](const auto& kernels, const StepState* state, T* p, T* a, T* b, bool device) {
      kernels.adam(state, spec, product(device ? device_dy.data() : dy.data(), device ? device_x.data() : x.data()), p, a, b);
    });
}

}  // namespace

TEST_CASE("cuda optimizer: gradients in memory, all lengths, aligned and not") {
  for (const size_t shift : {0, 1}) {
    for (const int64_t n : {0, 1, 3, 4, 33, 1000, 1025}) {
      check_from_memory<float>(n, shift);
      check_from_memory<double>(n, shift);
    }
  }
}

TEST_CASE("cuda optimizer: more elements than one round of threads") {
  const int64_t n = 2048 * 256 + 77;  // in scalar accesses, because of the shift
  const State<float> start(n, 5);
  const auto g = normal_vector<float>(n, 6);
  const DeviceArray<float> device_g(g, 1);
  check_update(start, {.t = 1, .lr = 0.1}, 1, [&](const auto& kernels, const StepState* state, float* p, float*, float*, bool device) {
    kernels.sgd(state, {}, n, p, device ? device_g.data() : g.data(), nullptr);
  });
}

TEST_CASE("cuda optimizer: gradients from their factors") {
  for (const size_t shift : {0, 1}) {
    for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {37, 20}, {5, 516}, {33, 131}}) {
      for (const int rows : {1, 4, 5, 16}) {
        check_from_product<float>(out, in, rows, shift);
        check_from_product<double>(out, in, rows, shift);
      }
    }
  }
  check_from_product<float>(0, 5, 2, 0);
  check_from_product<float>(5, 0, 2, 0);
}

TEST_CASE("cuda optimizer: more rows of a weight than the second axis of a grid has blocks (H02)") {
  const int64_t out = 65'535 * 16 + 1;
  const State<float> start(out, 8);
  const auto dy = normal_vector<float>(out, 9);
  const std::vector<float> x{0.7F};
  const DeviceArray<float> device_dy(dy), device_x(x);
  check_update(start, {.t = 1, .lr = 0.1}, 0, [&](const auto& kernels, const StepState* state, float* p, float*, float*, bool device) {
    RankUpdate<float> g{.out = out, .in = 1, .rows = 1};
    g.dy[0] = device ? device_dy.data() : dy.data();
    g.x[0] = device ? device_x.data() : x.data();
    kernels.sgd(state, {}, g, p, nullptr);
  });
}

TEST_CASE("cuda adam: worked values (D01, D02, D03)") {
  const auto step_of = [](const AdamSpec& spec, double lr, double p0, double g0) {
    const DeviceArray<double> p(std::vector<double>{p0}), g(std::vector<double>{g0}), m(std::vector<double>{0}), v(std::vector<double>{0});
    const DeviceArray<StepState> state(std::vector<StepState>{{.t = 1, .lr = lr}});
    CudaBackend::optimizer<double>().adam(state.data(), spec, 1, p.data(), g.data(), m.data(), v.data());
    return p.host()[0];
  };
  CHECK(step_of({}, 1e-3, 0, 1e-8) == Approx(-5.0e-4).epsilon(1e-9));
  CHECK(step_of({}, 1e-3, 0, 1) == Approx(-0.001).epsilon(1e-7));
  CHECK(step_of({.weight_decay = 0.01, .decoupled = true}, 0.1, 1, 0.5) == Approx(0.899000002).epsilon(1e-9));
  CHECK(step_of({.weight_decay = 0.01}, 0.1, 1, 0.5) == Approx(0.900000002).epsilon(1e-9));
}

TEST_CASE("cuda optimizer: a step that was found not finite leaves everything as it is") {
  const State<float> start(100, 7);
  const std::vector<float> g(100, NAN);
  const DeviceArray<float> device_g(g);
  const StepState step{.t = 1, .lr = 0.1, .finite = 0};
  check_update(start, step, 0, [&](const auto& kernels, const StepState* state, float* p, float* a, float* b, bool device) {
    kernels.adam(state, {.weight_decay = 0.1, .decoupled = true}, 100, p, device ? device_g.data() : g.data(), a, b);
    kernels.sgd(state, {.momentum = 0.9, .first = true}, 100, p, device ? device_g.data() : g.data(), a);
  });
}
