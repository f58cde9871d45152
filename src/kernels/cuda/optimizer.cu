// SGD and Adam updates: one launch, every array read once and written once. A gradient comes from memory or, row by row, from its factors. What
// changes from step to step is read from the StepState in device memory, so that a captured graph stays right.

#include <algorithm>
#include <cmath>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device/row.cuh"

namespace lamina::kernels {

namespace cuda {

namespace {

template <class T>
struct SgdRule {
  /// What every element needs, worked out once for a block.
  struct Numbers {
    T scale, decay, lr, momentum, fresh;
  };
  __device__ Numbers numbers(const StepState& state) const {
    return {static_cast<T>(state.grad_scale), static_cast<T>(spec.weight_decay), static_cast<T>(state.lr), static_cast<T>(spec.momentum),
            static_cast<T>(1 - spec.dampening)};
  }

  /// Updates kVec elements from `at` on, whose gradients are g.
  template <int kVec>
  __device__ void apply(const Numbers& c, int64_t at, const T (&g)[kVec]) const {
    T ps[kVec], vs[kVec] = {};
    load(p + at, ps);
    const bool reads_velocity = velocity != nullptr && !spec.first;
    if (reads_velocity) load(velocity + at, vs);
    for (int k = 0; k < kVec; ++k) {
      T d = g[k] * c.scale;
      if (spec.weight_decay != 0) d = std::fma(ps[k], c.decay, d);
      if (velocity != nullptr) {
        vs[k] = spec.first ? d : std::fma(c.momentum, vs[k], c.fresh * d);
        d = spec.nesterov ? std::fma(c.momentum, vs[k], d) : vs[k];
      }
      ps[k] = std::fma(-c.lr, d, ps[k]);
    }
    if (velocity != nullptr) store<T, kVec>(velocity + at, vs);
    store<T, kVec>(p + at, ps);
  }

  SgdSpec spec;
  dptr<T> p, velocity;
};

template <class T>
struct AdamRule {
  struct Numbers {
    T scale, decay, keep, beta1, fresh1, beta2, fresh2, step, root_scale, eps;
  };
  __device__ Numbers numbers(const StepState& state) const {
    const double t = static_cast<double>(state.t);
    return {static_cast<T>(state.grad_scale),
            static_cast<T>(spec.weight_decay),
            static_cast<T>(spec.decoupled ? 1 - state.lr * spec.weight_decay : 1.0),
            static_cast<T>(spec.beta1),
            static_cast<T>(1 - spec.beta1),
            static_cast<T>(spec.beta2),
            static_cast<T>(1 - spec.beta2),
            static_cast<T>(state.lr / (1 - std::pow(spec.beta1, t))),
            static_cast<T>(1 / std::sqrt(1 - std::pow(spec.beta2, t))),
            static_cast<T>(spec.eps)};
  }

  template <int kVec>
  __device__ void apply(const Numbers& c, int64_t at, const T (&g)[kVec]) const {
    const bool coupled = spec.weight_decay != 0 && !spec.decoupled;
    T ps[kVec], ms[kVec], vs[kVec];
    load(p + at, ps);
    load(m + at, ms);
    load(v + at, vs);
    for (int k = 0; k < kVec; ++k) {
      T d = g[k] * c.scale;
      if (coupled) d = std::fma(ps[k], c.decay, d);
      ms[k] = std::fma(c.beta1, ms[k], c.fresh1 * d);
      vs[k] = std::fma(c.beta2, vs[k], c.fresh2 * (d * d));
      const T denominator = std::fma(std::sqrt(vs[k]), c.root_scale, c.eps);
      ps[k] = std::fma(-c.step, ms[k] / denominator, ps[k] * c.keep);
    }
    store<T, kVec>(m + at, ms);
    store<T, kVec>(v + at, vs);
    store<T, kVec>(p + at, ps);
  }

  AdamSpec spec;
  dptr<T> p, m, v;
};

// One thread of a block works out the numbers (two powers in double). False, for all threads: this step leaves everything as it is.
template <class Rule>
__device__ bool prepare(dptr<const StepState> state, const Rule& rule, typename Rule::Numbers& numbers) {
  __shared__ shared_array<typename Rule::Numbers, 1> of_block;
  const StepState now = state[0];
  if (now.finite == 0) return false;
  if (threadIdx.x == 0) of_block[0] = rule.numbers(now);
  __syncthreads();
  numbers = of_block[0];
  return true;
}

constexpr int memory_threads = 256, product_threads = 128;

template <class T, class Rule, int kVec>
__global__ void __launch_bounds__(memory_threads) update_from_memory(dptr<const StepState> state, Rule rule, int64_t n, dptr<const T> g) {
  typename Rule::Numbers numbers;
  if (!prepare(state, rule, numbers)) return;
  const int64_t thread = int64_t{blockIdx.x} * memory_threads + threadIdx.x, threads = int64_t{gridDim.x} * memory_threads;
  for (int64_t pack = thread; pack < n / kVec; pack += threads) {
    T gs[kVec];
    load(g + pack * kVec, gs);
    rule.template apply<kVec>(numbers, pack * kVec, gs);
  }
  if (kVec > 1 && thread < n % kVec) {
    const T one[1] = {g[n / kVec * kVec + thread]};
    rule.template apply<1>(numbers, n / kVec * kVec + thread, one);
  }
}

// RankUpdate with device pointers.
template <class T>
struct Product {
  int64_t out, in;
  int rows;
  dptr<const T> dy[RankUpdate<T>::max_rows], x[RankUpdate<T>::max_rows];
};

// A thread keeps its kVec columns of x for all rows of its block's part of the weight. The products are the chain of fused multiply-adds in the order
// of the rows that RankUpdate promises; more than `rows` of them never happen.
template <class T, class Rule, int kVec, int kRows>
__global__ void __launch_bounds__(product_threads)
    update_from_product(dptr<const StepState> state, Rule rule, Product<T> product, int64_t out_per_block) {
  typename Rule::Numbers numbers;
  if (!prepare(state, rule, numbers)) return;
  const int64_t column = (int64_t{blockIdx.x} * product_threads + threadIdx.x) * kVec;
  if (column >= product.in) return;
  T x[kRows][kVec];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (r < product.rows) load(product.x[r] + column, x[r]);
  const int64_t begin = int64_t{blockIdx.y} * out_per_block, end = begin + out_per_block < product.out ? begin + out_per_block : product.out;
  for (int64_t o = begin; o < end; ++o) {
    T g[kVec] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= product.rows) continue;
      const T dy = product.dy[r][o];
      for (int k = 0; k < kVec; ++k) g[k] = std::fma(dy, x[r][k], g[k]);
    }
    rule.template apply<kVec>(numbers, o * product.in + column, g);
  }
}

template <class T, class Rule>
void update(const Op& op, const StepState* state, const Rule& rule, bool packs, int64_t n, const T* g) {
  constexpr int vec = Pack<T>::size;
  constexpr int64_t most_blocks = 2048;  // fills any GPU; threads loop beyond
  if (packs && packs_fit(g))
    launch(op, update_from_memory<T, Rule, vec>, blocks_for(n, memory_threads * vec, most_blocks), memory_threads, 0, stream(), state, rule, n, g);
  else
    launch(op, update_from_memory<T, Rule, 1>, blocks_for(n, memory_threads, most_blocks), memory_threads, 0, stream(), state, rule, n, g);
}

template <class T, int kVec, int kRows, class Rule>
void update_rows(const Op& op, const StepState* state, const Rule& rule, const Product<T>& product) {
  constexpr int64_t most_blocks = 65535;  // of the second axis of a grid
  const int64_t out_per_block = std::max<int64_t>(16, (product.out + most_blocks - 1) / most_blocks);
  const dim3 grid(blocks_for(product.in, product_threads * kVec, INT32_MAX), blocks_for(product.out, out_per_block, most_blocks));
  launch(op, update_from_product<T, Rule, kVec, kRows>, grid, product_threads, 0, stream(), state, rule, product, out_per_block);
}

template <class T, class Rule>
void update(const Op& op, const StepState* state, const Rule& rule, bool packs, const RankUpdate<T>& g) {
  Product<T> product{g.out, g.in, g.rows, {}, {}};
  packs = packs && packs_fit<T>(nullptr, g.in);
  for (int r = 0; r < g.rows; ++r) {
    product.dy[r] = g.dy[static_cast<size_t>(r)];
    product.x[r] = g.x[static_cast<size_t>(r)];
    packs = packs && packs_fit(g.x[static_cast<size_t>(r)]);
  }
  constexpr int vec = Pack<T>::size, few = 4, all = RankUpdate<T>::max_rows;
  if (g.rows <= few)
    packs ? update_rows<T, vec, few>(op, state, rule, product) : update_rows<T, 1, few>(op, state, rule, product);
  else
    packs ? update_rows<T, vec, all>(op, state, rule, product) : update_rows<T, 1, all>(op, state, rule, product);
}

template <class T>
struct CudaOptimizer final : OptimizerKernels<T> {
  void sgd(const StepState* state, const SgdSpec& spec, int64_t n, T* p, const T* g, T* velocity) const override {
    update(Op("sgd", {{"n", n}}), state, SgdRule<T>{spec, p, velocity}, packs_fit(p) && packs_fit(velocity), n, g);
  }
  void sgd(const StepState* state, const SgdSpec& spec, const RankUpdate<T>& g, T* p, T* velocity) const override {
    const Op op("sgd", {{"out", g.out}, {"in", g.in}, {"rows", g.rows}});
    update(op, state, SgdRule<T>{spec, p, velocity}, packs_fit(p) && packs_fit(velocity), g);
  }
  void adam(const StepState* state, const AdamSpec& spec, int64_t n, T* p, const T* g, T* m, T* v) const override {
    update(Op("adam", {{"n", n}}), state, AdamRule<T>{spec, p, m, v}, packs_fit(p) && packs_fit(m) && packs_fit(v), n, g);
  }
  void adam(const StepState* state, const AdamSpec& spec, const RankUpdate<T>& g, T* p, T* m, T* v) const override {
    const Op op("adam", {{"out", g.out}, {"in", g.in}, {"rows", g.rows}});
    update(op, state, AdamRule<T>{spec, p, m, v}, packs_fit(p) && packs_fit(m) && packs_fit(v), g);
  }
};

}  // namespace

}  // namespace cuda

template <>
const OptimizerKernels<float>& CudaBackend::optimizer<float>() {
  static const cuda::CudaOptimizer<float> kernels;
  return kernels;
}
template <>
const OptimizerKernels<double>& CudaBackend::optimizer<double>() {
  static const cuda::CudaOptimizer<double> kernels;
  return kernels;
}

}  // namespace lamina::kernels
