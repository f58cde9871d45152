#pragma once
// What the emulator's own tests share.

#include <string>
#include <vector>

#include "cuda_emulator/heap.h"
#include "cuda_emulator/report.h"
#include "kernels/cuda/launch.h"
#include "kernels_cuda/device_array.h"
#include "support/catch.h"

namespace lamina::test {

using namespace lamina::kernels::cuda;

/// Launches with an operation called "test".
template <class... P, class... A>
void start(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A&&... args) {
  launch(Op("test", {}), kernel, grid, block, shared_bytes, stream(), std::forward<A>(args)...);
}

/// The text of the emulator's error that f ends with; "" if there is none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const cuda_emulator::Error& error) {
    return error.what();
  }
  return "";
}

/// Another order of threads while it lives.
class Seed {
 public:
  explicit Seed(uint64_t seed) { cuda_emulator::set_seed(seed); }
  ~Seed() { cuda_emulator::set_seed(0); }
  Seed(const Seed&) = delete;
  Seed& operator=(const Seed&) = delete;
};

}  // namespace lamina::test
