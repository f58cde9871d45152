#pragma once

#include <lamina/core/parallel.h>

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

}  // namespace lamina::test
