#pragma once
// The device that a run of the tests is about: the CPU, or what the environment variable LAMINA_TEST_DEVICE names ("cuda"). Test cases about the CPU
// alone (its memory, its threads, host pointers) carry the tag [cpu] and a reason; runs on other devices leave them out.

#include <cstdlib>
#include <type_traits>

#include <lamina/core/device.h>

namespace lamina::test {

inline Device device() {
  static const Device device = [] {
    const char* name = std::getenv("LAMINA_TEST_DEVICE");
    return Device::parse(name ? name : "cpu");
  }();
  return device;
}

/// A module, a parameter or a tensor there: on_device(nn::Linear(2, 3)).
template <class Moved>
Moved on_device(Moved x) {
  if constexpr (std::is_void_v<decltype(x.to(device()))>)
    x.to(device());
  else
    x = x.to(device());
  return x;
}

/// Draws the parameters of a module and takes it there.
template <class Module>
Module& init(Module& module, uint64_t seed) {
  module.init(seed);
  module.to(device());
  return module;
}

}  // namespace lamina::test
