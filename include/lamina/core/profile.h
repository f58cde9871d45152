#pragma once
// Where the time of a step goes, by kernel family.

#include <cstdint>
#include <string>
#include <vector>

namespace lamina {

/// The calls of one family of kernels ("gemm", "norm", "elementwise", "optimizer", ...) while profiling was on, from all threads.
struct KernelTime {
  std::string family;
  int64_t calls = 0;
  double seconds = 0;
};

/// Starts timing every kernel call, from zero. Costs two clock readings a call; while profiling is off a call costs one look at a flag.
void start_profile();
/// Stops, and returns the families that were called, the most time first. What a step takes beyond their sum is the graph, memory and the caller.
std::vector<KernelTime> stop_profile();

}  // namespace lamina
