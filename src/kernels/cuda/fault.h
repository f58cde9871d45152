#pragma once
// Errors in data that only a kernel sees: an index or a label that is out of range. A kernel cannot throw; it leaves such an element out, writes down
// the first one in a record in device memory (device/fault.cuh), and goes on. The host throws it at the next copy to the host or synchronize().
//
// A record names the op and the argument. Kernels have names of their own for them ("gather_rows", "index"); an op that wants its users to read its
// own keeps a FaultName while it calls them. Nothing here needs CUDA, so that ops can do so in every build.

#include <cstdint>

namespace lamina::kernels {

/// What the indices that kernels are given are called, for the length of a scope, on this thread: FaultName name("embedding", "ids"). The texts must
/// be literals: their addresses travel to the GPU and back.
class FaultName {
 public:
  FaultName(const char* op, const char* argument) : op_(op), argument_(argument), outer_(innermost) { innermost = this; }
  ~FaultName() { innermost = outer_; }
  FaultName(const FaultName&) = delete;
  FaultName& operator=(const FaultName&) = delete;

  const char* op() const { return op_; }
  const char* argument() const { return argument_; }
  /// Of this thread, or null.
  static const FaultName* current() { return innermost; }

 private:
  static inline thread_local const FaultName* innermost = nullptr;
  const char *op_, *argument_;
  const FaultName* outer_;
};

namespace cuda {

/// The record: numbers, so that nothing but an atomic exchange of the first is asked of the device. `taken` is 0 until there is a fault.
enum FaultField : int { fault_taken, fault_op, fault_argument, fault_position, fault_value, fault_limit, fault_fields };

/// The current GPU's record, in its memory; made at the first use.
unsigned long long* fault_record();

/// Waits for the stream. If a kernel found a fault since the last call: clears it and throws
/// "[embedding] ids: 7 at position 3 is out of range 0 to 4 (found on the GPU)".
void throw_if_fault();

}  // namespace cuda

}  // namespace lamina::kernels
