#pragma once
// What the emulator says when a kernel, or the host around it, does what a GPU would not forgive.

#include <stdexcept>
#include <string>

namespace cuda_emulator {

/// A broken rule. The text names kernel, block and thread: "[kernel] block (0, 0, 0), thread (3, 0, 0): read of ...".
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

/// Throws Error, with the kernel, block and thread that run now, or "host".
[[noreturn]] void violation(const std::string& what);

/// "[kernel] block (0, 0, 0), thread (3, 0, 0)", or "[host]".
std::string whereabouts();

}  // namespace cuda_emulator
