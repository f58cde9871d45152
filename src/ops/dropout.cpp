#include <lamina/autograd/graph.h>
#include <lamina/ops/dropout.h>

#include <cmath>
#include <utility>

#include "core/format.h"
#include "kernels/kernels.h"

namespace lamina {

namespace {

/// Where in which stream the mask lies, and what it does.
struct Mask {
  uint64_t key, counter;
  uint64_t threshold;  // keep where the 32-bit number is below
  double scale;
};

Tensor masked(const Mask& mask, const Tensor& x) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  with_float("dropout", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::random<T>(x.device())->dropout(mask.key, mask.counter, x.numel(), mask.threshold, mask.scale, x.data<T>(), y.mutable_data<T>());
  });
  return y;
}

}  // namespace

Tensor dropout(const Tensor& x, double p, Rng& rng) {
  if (!(p >= 0 && p <= 1)) fail("dropout", "p: expected a probability in [0, 1], got {}", p);
  if (!is_float(x.dtype())) fail_dtype("dropout", "f32 or f64", x.dtype());
  if (p == 0) return x;
  const double keep = 1 - p;
  const uint64_t blocks = (static_cast<uint64_t>(x.numel()) + 3) / 4;
  const Mask mask{.key = rng.key,
                  .counter = std::exchange(rng.counter, rng.counter + blocks),
                  .threshold = static_cast<uint64_t>(std::llround(keep * 0x1p32)),
                  .scale = keep > 0 ? 1 / keep : 0.0};  // p = 1 keeps nothing: no 0 * inf
  return autograd::record("dropout", {x}, masked(mask, x), {}, [mask](autograd::Backward& b) { b.give(0, masked(mask, b.dy())); });
}

}  // namespace lamina
