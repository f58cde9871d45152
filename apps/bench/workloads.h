#pragma once
// The named workloads: the same names and the same work as scripts/peer_pytorch.py, and some of our own.

#include <functional>
#include <string>
#include <vector>

#include "bench/floor.h"

namespace bench {

struct Workload {
  std::string name;
  Work work;
  std::function<std::function<void()>()> make;  // builds the state and returns one step
};

/// On a device.
std::vector<Workload> workloads(lamina::Device device);
std::vector<Workload> norm_workloads(lamina::Device device);  // part of them

}  // namespace bench
