#pragma once
// Where a tensor lives. There is no hidden default device: factories take one and default to the CPU.

#include <string>
#include <string_view>

namespace lamina {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static Device cpu() { return {}; }
  /// Throws Error when lamina was built without CUDA or there is no such GPU.
  static Device cuda(int index = 0);
  /// "cpu", "cuda", "cuda:1", or "auto" (the first GPU if there is one, else the CPU). Throws InputError otherwise.
  static Device parse(std::string_view text);

  bool is_cpu() const { return kind == Kind::cpu; }
  bool operator==(const Device&) const = default;
  std::string str() const;
};

/// Whether this build of lamina has the CUDA backend.
bool built_with_cuda();

}  // namespace lamina
