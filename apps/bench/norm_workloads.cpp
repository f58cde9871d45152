// The normalisers, forward ("forward/...") and forward and backward ("op/..."), in cache and beyond it.

#include <fmt/format.h>
#include <lamina/lamina.h>

#include <memory>
#include <utility>

#include "bench/workloads.h"

namespace bench {

using namespace lamina;

namespace {

using Function = std::function<Tensor(const Tensor&)>;

// A fresh layer, whose gradients are dropped before each run.
template <class Layer, class... Args>
std::function<Function()> layer(Args... args) {
  return [=]() -> Function {
    auto made = std::make_shared<Layer>(args...);
    made->init(1);
    return [made](const Tensor& x) {
      made->zero_grad();
      return (*made)(x);
    };
  };
}

// The gain of a weight norm is the layer's own.
Function weight_norm_function(int64_t out) {
  Tensor g = Tensor::ones({out, 1});
  g.set_requires_grad();
  return [g](const Tensor& v) mutable {
    g.zero_grad();
    return weight_norm(v, g);
  };
}

Workload forward(const std::string& name, const Work& work, const Shape& shape, const std::function<Function()>& make) {
  return {"forward/" + name, work, [=]() -> std::function<void()> {
            Rng rng(3);
            return [x = randn(shape, rng), f = make()] { f(x); };
          }};
}

// With a given cotangent; the input's gradient is dropped before each run.
Workload both(const std::string& name, const Work& work, const Shape& shape, const std::function<Function()>& make) {
  return {"op/" + name, work, [=]() -> std::function<void()> {
            Rng rng(3);
            Tensor x = randn(shape, rng);
            x.set_requires_grad();
            return [x, w = randn(shape, rng), f = make()]() mutable {
              x.zero_grad();
              f(x).backward(w);
            };
          }};
}

struct Norms {
  std::vector<Workload> all;

  // x -> y; backward x, dy -> dx. A row is in the nearest cache when it is needed again.
  void rows(const std::string& name, const Shape& shape, const std::function<Function()>& make) {
    const int64_t bytes = 4 * shape.numel();
    all.push_back(forward(name, {0, {{bytes, 1, 1, 0}}}, shape, make));
    all.push_back(both(name, {0, {{bytes, 1, 1, 0}, {bytes, 2, 1, 0}}}, shape, make));
  }

  // The statistics need a pass of their own: x, then x -> y; backward x and dy, then x, dy -> dx.
  void channels(const std::string& name, const Shape& shape) {
    const int64_t bytes = 4 * shape.numel();
    const auto make = layer<nn::BatchNorm1d>(shape[1]);
    all.push_back(forward(name, {0, {{bytes, 1, 0, 0}, {bytes, 1, 1, 0}}}, shape, make));
    all.push_back(both(name, {0, {{bytes, 1, 0, 0}, {bytes, 1, 1, 0}, {bytes, 2, 0, 0}, {bytes, 2, 1, 0}}}, shape, make));
  }
};

}  // namespace

std::vector<Workload> norm_workloads() {
  Norms norms;
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{128, 1000}, {4096, 768}, {65536, 256}}) {
    const std::string size = fmt::format("{}x{}", rows, width);
    const Shape shape{rows, width};
    norms.rows("layer_norm-" + size, shape, layer<nn::LayerNorm>(width));
    norms.rows("rms_norm-" + size, shape, layer<nn::RMSNorm>(width));
    norms.rows("prms_norm-" + size, shape, layer<nn::RMSNorm>(width, nn::RMSNormLayerOptions{.partial = 0.0625}));
  }
  norms.rows("weight_norm-1000x784", {1000, 784}, [] { return weight_norm_function(1000); });
  norms.channels("batch_norm-128x1000", {128, 1000});
  for (const int64_t batch : {32, 512}) {
    const std::string size = fmt::format("{}x64x28x28", batch);
    const Shape shape{batch, 64, 28 * 28};
    norms.channels("batch_norm-" + size, shape);
    norms.rows("group_norm-" + size + "-g8", shape, layer<nn::GroupNorm>(int64_t{8}, int64_t{64}));
    norms.rows("instance_norm-" + size, shape, layer<nn::InstanceNorm1d>(int64_t{64}, nn::InstanceNormLayerOptions{.affine = true}));
  }
  return std::move(norms.all);
}

}  // namespace bench
