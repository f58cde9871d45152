#pragma once

#include <lamina/core/parallel.h>

#include <vector>

#include "support/device.h"

namespace lamina::test {

/// Sets the thread count while it lives.
class Threads {
 public:
  explicit Threads(int count) : previous_(num_threads()) { set_num_threads(count); }
  ~Threads() { set_num_threads(previous_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int previous_;
};

/// Those for a test to run with; one on a GPU, which does not see them.
inline std::vector<int> thread_counts(std::vector<int> counts) {
  if (!device().is_cpu()) counts.resize(1);
  return counts;
}

}  // namespace lamina::test
