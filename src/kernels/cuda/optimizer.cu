// SGD and Adam updates of all parameters in one launch, every array read once and written once, and what a step looks at before them. The items
// travel as the kernel's argument, so a captured graph has them, and nothing is uploaded. What changes from step to step is read from the StepState.

#include <algorithm>
#include <cmath>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device/arithmetic.cuh"
#include "kernels/cuda/device/row.cuh"

namespace lamina::kernels {

namespace cuda {

namespace {

constexpr int threads = 256;
constexpr int64_t most_blocks = 8192, chunk_bytes = 16 * 1024;  // a block takes a chunk of one item at a time

template <class T>
struct UpdateEntry {
  int64_t first_chunk, n, missed;
  T* p;
  const T* g;
  T *first, *second;
  double lr_factor, grad_scale, weight_decay;
  bool packs, fresh;
};

template <class T>
struct GradientEntry {
  int64_t first_chunk, n;
  const T* g;
  bool packs;
};

/// Some entries, their chunks numbered through.
template <class E, int kMost>
struct Table {
  int64_t chunks;
  int count;
  E at[kMost];

  __device__ int entry_of(int64_t chunk) const {
    int low = 0, high = count;  // the last entry that begins at or before it
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (at[middle].first_chunk <= chunk ? low : high) = middle;
    }
    return low;
  }
};

/// f(integral_constant<int, elements>, first element) for what this thread has of a chunk.
template <class T, class E, class F>
__device__ void each_in_chunk(const E& entry, int64_t chunk, F f) {
  constexpr int64_t size = chunk_bytes / static_cast<int64_t>(sizeof(T));
  constexpr int vec = Pack<T>::size;
  const int64_t begin = (chunk - entry.first_chunk) * size, end = begin + size < entry.n ? begin + size : entry.n;
  const int64_t packed = entry.packs ? (end - begin) / vec : 0;
  for (int64_t pack = threadIdx.x; pack < packed; pack += threads) f(std::integral_constant<int, vec>(), begin + pack * vec);
  for (int64_t i = begin + packed * vec + threadIdx.x; i < end; i += threads) f(std::integral_constant<int, 1>(), i);
}

// Rules: what every element of an item needs, worked out once for a chunk, and the update of kVec elements whose gradients are g.

template <class T>
struct SgdRule {
  using Spec = SgdSpec;
  struct Numbers {
    T scale, decay, lr, momentum, fresh;
  };
  __device__ static Numbers numbers(const StepState& state, const SgdSpec& spec, const UpdateEntry<T>& item) {
    return {static_cast<T>(state.grad_scale * item.grad_scale), static_cast<T>(item.weight_decay), static_cast<T>(state.lr * item.lr_factor),
            static_cast<T>(spec.momentum), static_cast<T>(1 - spec.dampening)};
  }

  template <int kVec>
  __device__ static void apply(const Numbers& c, const SgdSpec& spec, const UpdateEntry<T>& item, dptr<T> p, dptr<T> velocity, dptr<T> /*unused*/,
                               int64_t at, const T (&g)[kVec]) {
    T ps[kVec], vs[kVec] = {};
    load(p + at, ps);
    if (velocity != nullptr && !item.fresh) load(velocity + at, vs);
    for (int k = 0; k < kVec; ++k) {
      T d = g[k] * c.scale;
      if (item.weight_decay != 0) d = std::fma(ps[k], c.decay, d);
      if (velocity != nullptr) {
        vs[k] = item.fresh ? d : std::fma(c.momentum, vs[k], c.fresh * d);
        d = spec.nesterov ? std::fma(c.momentum, vs[k], d) : vs[k];
      }
      ps[k] = std::fma(-c.lr, d, ps[k]);
    }
    if (velocity != nullptr) store<T, kVec>(velocity + at, vs);
    store<T, kVec>(p + at, ps);
  }
};

template <class T>
struct AdamRule {
  using Spec = AdamSpec;
  struct Numbers {
    T scale, decay, keep, beta1, fresh1, beta2, fresh2, step, root_scale, eps;
  };
  __device__ static Numbers numbers(const StepState& state, const AdamSpec& spec, const UpdateEntry<T>& item) {
    const double t = static_cast<double>(state.t - item.missed), lr = state.lr * item.lr_factor;
    return {static_cast<T>(state.grad_scale * item.grad_scale),
            static_cast<T>(item.weight_decay),
            static_cast<T>(spec.decoupled ? 1 - lr * item.weight_decay : 1.0),
            static_cast<T>(spec.beta1),
            static_cast<T>(1 - spec.beta1),
            static_cast<T>(spec.beta2),
            static_cast<T>(1 - spec.beta2),
            static_cast<T>(lr / (1 - std::pow(spec.beta1, t))),
            static_cast<T>(1 / std::sqrt(1 - std::pow(spec.beta2, t))),
            static_cast<T>(spec.eps)};
  }

  template <int kVec>
  __device__ static void apply(const Numbers& c, const AdamSpec& spec, const UpdateEntry<T>& item, dptr<T> p, dptr<T> m, dptr<T> v, int64_t at,
                               const T (&g)[kVec]) {
    const bool coupled = item.weight_decay != 0 && !spec.decoupled;
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
};

template <class T, class Rule, int kMost>
__global__ void __launch_bounds__(threads)
    update_items(dptr<const StepState> state, typename Rule::Spec spec, const Table<UpdateEntry<T>, kMost> table) {
  __shared__ shared_array<typename Rule::Numbers, 1> of_chunk;
  const StepState now = state[0];
  if (now.finite == 0) return;
  for (int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    const UpdateEntry<T>& item = table.at[table.entry_of(chunk)];
    __syncthreads();                                                     // the numbers of the last one have been read
    if (threadIdx.x == 0) of_chunk[0] = Rule::numbers(now, spec, item);  // two powers in double
    __syncthreads();
    const typename Rule::Numbers numbers = of_chunk[0];
    const dptr<T> p = item.p, first = item.first, second = item.second;
    const dptr<const T> g = item.g;
    each_in_chunk<T>(item, chunk, [&](auto width, int64_t at) {
      constexpr int vec = decltype(width)::value;
      T gs[vec];
      load(g + at, gs);
      Rule::template apply<vec>(numbers, spec, item, p, first, second, at, gs);
    });
  }
}

/// parts[2 block] = the block's sum of squares, parts[2 block + 1] = how many elements are not finite.
template <class T, int kMost>
__global__ void __launch_bounds__(threads) measure_gradients(const Table<GradientEntry<T>, kMost> table, dptr<double> parts) {
  double sums[2] = {};
  for (int64_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    const GradientEntry<T>& item = table.at[table.entry_of(chunk)];
    const dptr<const T> g = item.g;
    each_in_chunk<T>(item, chunk, [&](auto width, int64_t at) {
      T gs[decltype(width)::value];
      load(g + at, gs);
      for (const T value : gs) {
        sums[0] += static_cast<double>(value) * static_cast<double>(value);
        sums[1] += value - value == T(0) ? 0 : 1;  // inf - inf and NaN - NaN are NaN
      }
    });
  }
  BlockGroup<threads>::sum(sums);
  if (threadIdx.x == 0) {
    parts[2 * int64_t{blockIdx.x}] = sums[0];
    parts[2 * int64_t{blockIdx.x} + 1] = sums[1];
  }
}

struct Judgement {
  double max_norm, items;
  bool check;
};

/// One block: the step's verdict, from `count` parts of measure_gradients.
__global__ void __launch_bounds__(threads)
    judge(dptr<StepState> state, Judgement what, dptr<const float> loss_f32, dptr<const double> loss_f64, int64_t count, dptr<const double> parts) {
  double sums[2] = {};
  for (int64_t i = threadIdx.x; i < count; i += threads) {
    sums[0] += parts[2 * i];
    sums[1] += parts[2 * i + 1];
  }
  BlockGroup<threads>::sum(sums);
  if (threadIdx.x != 0) return;
  StepState now = state[0];
  if (now.finite == 0) return;
  const double norm = std::sqrt(sums[0]);
  double loss = 0;
  if (loss_f32 != nullptr) loss = static_cast<double>(loss_f32[0]);
  if (loss_f64 != nullptr) loss = loss_f64[0];
  now.loss = loss;
  now.at_loss = loss - loss == 0 ? 0 : 1;
  const bool good = (what.max_norm == 0 || norm - norm == 0) && (!what.check || sums[1] == 0);
  if (now.at_loss || !good) {
    now.finite = 0;
  } else {
    const double factor = what.max_norm > 0 ? what.max_norm / (norm + 1e-6) : 1;
    ++now.t;
    now.grad_scale = factor < 1 ? factor : 1;
    now.loss_sum = add_product(now.loss_sum, loss, what.items);
  }
  state[0] = now;
}

// The host's side.

// Entries of an argument: for most nets 4 KB do; the others are for the 32,764 bytes that an argument may have from CUDA 12.1 on.
template <class E>
constexpr int few_entries = (4096 - 256) / static_cast<int>(sizeof(E));
template <class E>
constexpr int many_entries = (32764 - 256) / static_cast<int>(sizeof(E));

/// Tables of all items: start(table) for each. make(item) gives an entry but for its chunks.
template <class T, class E, int kMost, class Items, class Make, class Start>
void in_tables(const Items& items, Make&& make, Start&& start) {
  constexpr int64_t size = chunk_bytes / static_cast<int64_t>(sizeof(T));
  static_assert(sizeof(Table<E, kMost>) <= (kMost == few_entries<E> ? 4096 : 32764) - 128);  // beside it stand other arguments
  Table<E, kMost> table{};
  for (const auto& item : items) {
    if (item.n == 0) continue;
    table.at[table.count] = make(item);
    table.at[table.count++].first_chunk = table.chunks;
    table.chunks += (item.n + size - 1) / size;
    if (table.count < kMost) continue;
    start(table);
    table = {};
  }
  if (table.count > 0) start(table);
}

template <class T>
int64_t elements_of(std::span<const T> items) {
  int64_t n = 0;
  for (const T& item : items) n += item.n;
  return n;
}

template <class T, class Rule>
void update(const char* name, const StepState* state, const typename Rule::Spec& spec, std::span<const OptimizerItem<T>> items) {
  using Entry = UpdateEntry<T>;
  const Op op(name, {{"parameters", static_cast<int64_t>(items.size())}, {"elements", elements_of(items)}});
  const auto make = [](const OptimizerItem<T>& i) {
    return Entry{0,
                 i.n,
                 i.missed,
                 i.p,
                 i.g,
                 i.first,
                 i.second,
                 i.lr_factor,
                 i.grad_scale,
                 i.weight_decay,
                 packs_fit(i.p) && packs_fit(i.g) && packs_fit(i.first) && packs_fit(i.second),
                 i.fresh};
  };
  const auto run = [&]<int kMost>() {
    in_tables<T, Entry, kMost>(items, make, [&](const auto& table) {
      launch(op, update_items<T, Rule, kMost>, blocks_for(table.chunks, 1, most_blocks), threads, 0, stream(), state, spec, table);
    });
  };
  if (items.size() <= static_cast<size_t>(few_entries<Entry>))
    run.template operator()<few_entries<Entry>>();
  else
    run.template operator()<many_entries<Entry>>();
}

template <class T>
struct CudaOptimizer final : OptimizerKernels<T> {
  void sgd(const StepState* state, const SgdSpec& spec, std::span<const OptimizerItem<T>> items) const override {
    update<T, SgdRule<T>>("sgd", state, spec, items);
  }
  void adam(const StepState* state, const AdamSpec& spec, std::span<const OptimizerItem<T>> items) const override {
    update<T, AdamRule<T>>("adam", state, spec, items);
  }
};

constexpr int64_t most_parts = 1024;  // blocks of a launch that measures

template <class T>
int64_t launches_of(std::span<const StepKernels::Gradient<T>> gradients) {
  constexpr int most = many_entries<GradientEntry<T>>;
  return (static_cast<int64_t>(gradients.size()) + most - 1) / most;
}

/// Measures gradients; the parts of all blocks are at parts + 2 count, and count grows by them.
template <class T>
void measure(const Op& op, std::span<const StepKernels::Gradient<T>> gradients, double* parts, int64_t& count) {
  using Entry = GradientEntry<T>;
  const auto run = [&]<int kMost>() {
    in_tables<T, Entry, kMost>(
        gradients,
        [](const StepKernels::Gradient<T>& g) {
          return Entry{0, g.n, g.g, packs_fit(g.g)};
        },
        [&](const auto& table) {
          const unsigned blocks = blocks_for(table.chunks, 1, most_parts);
          launch(op.at("measure_gradients"), measure_gradients<T, kMost>, blocks, threads, 0, stream(), table, parts + 2 * count);
          count += blocks;
        });
  };
  if (gradients.size() <= static_cast<size_t>(few_entries<Entry>))
    run.template operator()<few_entries<Entry>>();
  else
    run.template operator()<many_entries<Entry>>();
}

struct CudaStep final : StepKernels {
  void inspect(StepState* state, const Inspection& what) const override {
    const Op op("step", {{"gradients", static_cast<int64_t>(what.f32.size() + what.f64.size())},
                         {"elements", elements_of(what.f32) + elements_of(what.f64)}});
    const bool measures = what.max_norm > 0 || what.check;
    const Scratch<double> parts(op, measures ? 2 * most_parts * (launches_of(what.f32) + launches_of(what.f64)) : 0);
    int64_t count = 0;
    if (measures) {
      measure(op, what.f32, parts.data(), count);
      measure(op, what.f64, parts.data(), count);
    }
    launch(op.at("judge"), judge, 1, threads, 0, stream(), state, Judgement{what.max_norm, what.items, what.check}, what.loss_f32, what.loss_f64,
           count, parts.data());
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
const StepKernels& CudaBackend::step() {
  static const cuda::CudaStep kernels;
  return kernels;
}

}  // namespace lamina::kernels
