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
using Make = std::function<Function(Device)>;

// A fresh layer, whose gradients are dropped before each run.
template <class Layer, class... Args>
std::function<Function(Device)> layer(Args... args) {
  return [=](Device device) -> Function {
    auto made = std::make_shared<Layer>(args...);
    made->init(1);
    made->to(device);
    return [made](const Tensor& x) {
      made->zero_grad();
      return (*made)(x);
    };
  };
}

// The gain of a weight norm is the layer's own.
Function weight_norm_function(int64_t out, Device device) {
  Tensor g = Tensor::ones({out, 1}, DType::f32, device);
  g.set_requires_grad();
  return [g](const Tensor& v) mutable {
    g.zero_grad();
    return weight_norm(v, g);
  };
}

// Batch norm as small ops, whose backward goes through the graph step by step: what the closed form saves.
Make small_op_batch_norm(int64_t channels) {
  return [=](Device device) -> Function {
    Tensor gain = Tensor::ones({channels}, DType::f32, device), bias = Tensor::zeros({channels}, DType::f32, device);
    gain.set_requires_grad();
    bias.set_requires_grad();
    return [=](const Tensor& x) mutable {
      gain.zero_grad();
      bias.zero_grad();
      const auto along_channels = [&](const Tensor& v) { return x.rank() == 2 ? v : reshape(v, {channels, 1}); };
      const Axes axes = x.rank() == 2 ? Axes{0} : Axes{0, 2};
      const Tensor d = x - mean(x, axes, true), var = mean(d * d, axes, true);
      return d / sqrt(var + 1e-5) * along_channels(gain) + along_channels(bias);
    };
  };
}

Workload forward(const std::string& name, const Work& work, const Shape& shape, Device device, const Make& make) {
  return {"forward/" + name, work, [=]() -> std::function<void()> {
            Rng rng(3);
            return [x = randn(shape, rng).to(device), f = make(device)] { f(x); };
          }};
}

// With a given cotangent; the input's gradient is dropped before each run.
Workload both(const std::string& name, const Work& work, const Shape& shape, Device device, const Make& make) {
  return {"op/" + name, work, [=]() -> std::function<void()> {
            Rng rng(3);
            Tensor x = randn(shape, rng).to(device);
            x.set_requires_grad();
            return [x, w = randn(shape, rng).to(device), f = make(device)]() mutable {
              x.zero_grad();
              f(x).backward(w);
            };
          }};
}

enum Arrays : size_t { x, y, dy, dx };

struct Norms {
  Device device;
  std::vector<Workload> all = {};

  // x -> y; backward x, dy -> dx. A row is in the nearest cache when it is needed again.
  void rows(const std::string& name, const Shape& shape, const Make& make) {
    const int64_t bytes = 4 * shape.numel();
    all.push_back(forward(name, {0, {{bytes, {x}, {y}, {}}}}, shape, device, make));
    all.push_back(both(name, {0, {{bytes, {x}, {y}, {}}, {bytes, {x, dy}, {dx}, {}}}}, shape, device, make));
  }

  // The statistics need a pass of their own: x, then x -> y; backward x and dy, then x, dy -> dx.
  void channels(const std::string& name, const Shape& shape, const Make& make) {
    const int64_t bytes = 4 * shape.numel();
    all.push_back(forward(name, {0, {{bytes, {x}, {}, {}}, {bytes, {x}, {y}, {}}}}, shape, device, make));
    all.push_back(
        both(name, {0, {{bytes, {x}, {}, {}}, {bytes, {x}, {y}, {}}, {bytes, {x, dy}, {}, {}}, {bytes, {x, dy}, {dx}, {}}}}, shape, device, make));
  }
};

}  // namespace

std::vector<Workload> norm_workloads(Device device) {
  Norms norms{device};
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{128, 1000}, {4096, 768}, {65536, 256}}) {
    const std::string size = fmt::format("{}x{}", rows, width);
    const Shape shape{rows, width};
    norms.rows("layer_norm-" + size, shape, layer<nn::LayerNorm>(width));
    norms.rows("rms_norm-" + size, shape, layer<nn::RMSNorm>(width));
    norms.rows("prms_norm-" + size, shape, layer<nn::RMSNorm>(width, nn::RMSNormLayerOptions{.partial = 0.0625}));
  }
  norms.rows("weight_norm-1000x784", {1000, 784}, [](Device there) { return weight_norm_function(1000, there); });
  norms.channels("batch_norm-128x1000", {128, 1000}, layer<nn::BatchNorm1d>(1000));
  norms.channels("small_op_batch_norm-128x1000", {128, 1000}, small_op_batch_norm(1000));
  for (const int64_t batch : {32, 512}) {
    const std::string size = fmt::format("{}x64x28x28", batch);
    const Shape shape{batch, 64, 28 * 28};
    norms.channels("batch_norm-" + size, shape, layer<nn::BatchNorm1d>(64));
    if (batch == 32) norms.channels("small_op_batch_norm-" + size, shape, small_op_batch_norm(64));
    norms.rows("group_norm-" + size + "-g8", shape, layer<nn::GroupNorm>(int64_t{8}, int64_t{64}));
    norms.rows("instance_norm-" + size, shape, layer<nn::InstanceNorm1d>(int64_t{64}, nn::InstanceNormLayerOptions{.affine = true}));
  }
  return std::move(norms.all);
}

}  // namespace bench
