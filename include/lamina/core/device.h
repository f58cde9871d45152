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
/// GPUs that lamina can use: 0 in a build without CUDA, and where the driver is missing or too old.
int cuda_device_count();
/// "NVIDIA H100", "cpu".
std::string device_name(Device device);

/// Waits until everything that was asked of a device is done (work on a GPU is queued, and the calls return at once). Throws Error when some of it
/// went wrong.
void synchronize(Device device);

/// Lets f32 products on GPUs round their operands to TF32 (10 bits of mantissa) for speed; off at the start. The CPU never does.
void allow_tf32(bool allow);

}  // namespace lamina
