#pragma once

#include <lamina/core/random.h>
#include <lamina/core/tensor.h>

namespace lamina {

/// Inverted dropout: each element is 0 with probability p, else x / (1 - p). Advances `rng`; the mask is drawn again in the backward pass, not saved.
/// p = 0 returns x; p = 1 gives zeros and a zero gradient. Throws Error unless 0 <= p <= 1. f32, f64.
Tensor dropout(const Tensor& x, double p, Rng& rng);

}  // namespace lamina
