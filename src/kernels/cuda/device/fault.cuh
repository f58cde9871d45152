#pragma once
// How a kernel reports an index that is out of range (fault.h). The host makes a FaultReport and passes it to the kernel, which asks in_range before
// it uses an index, and leaves the element out if it is not.

#include "kernels/cuda/fault.h"
#include "kernels/cuda/launch.h"

namespace lamina::kernels::cuda {

struct FaultReport {
  /// Whether value is in [0, limit). If not, and it is the first such since the host looked, it is written down; position is where it stands among
  /// the op's indices.
  __device__ bool in_range(int64_t position, int64_t value, int64_t limit) const {
    if (static_cast<uint64_t>(value) < static_cast<uint64_t>(limit)) return true;  // negative values become large
    if (atomicCAS(record + fault_taken, 0ULL, 1ULL) == 0) {
      record[fault_op] = op;
      record[fault_argument] = argument;
      record[fault_position] = static_cast<unsigned long long>(position);
      record[fault_value] = static_cast<unsigned long long>(value);
      record[fault_limit] = static_cast<unsigned long long>(limit);
    }
    return false;
  }

  dptr<unsigned long long> record;
  unsigned long long op, argument;  // addresses of texts on the host
};

/// For one launch. The names count where no FaultName is in force.
inline FaultReport fault_report(const char* op, const char* argument) {
  if (const FaultName* name = FaultName::current()) {
    op = name->op();
    argument = name->argument();
  }
  return {fault_record(), reinterpret_cast<uintptr_t>(op), reinterpret_cast<uintptr_t>(argument)};
}

}  // namespace lamina::kernels::cuda
