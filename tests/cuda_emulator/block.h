#pragma once
// The emulator's core: executor.cpp starts blocks and lets their threads take turns, waits.cpp has what they wait for.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cuda_emulator/executor.h"
#include "cuda_emulator/fiber.h"

namespace cuda_emulator {

std::string text(const Dim& d);
std::string text(const Place& at);  // "file.cu:12"

enum class State { unstarted, ready, at_barrier, in_warp_operation, done };

struct Thread {
  Dim index;
  State state = State::unstarted;
  Fiber* fiber = nullptr;          // where it runs or waits
  const WarpCall* call = nullptr;  // in_warp_operation: which, on its stack,
  Place where{};                   // at_barrier: where
  Vote vote = Vote::none;
  uint64_t result = 0;
};

// Threads that can go on, first in, first out; each is in it once at most.
class Queue {
 public:
  bool empty() const { return first_ == end_; }
  void clear() { first_ = end_ = 0; }
  void push(int thread) { threads_[end_++ % threads_.size()] = thread; }
  int pop() { return threads_[first_++ % threads_.size()]; }

 private:
  std::array<int, Limits::threads> threads_{};
  uint32_t first_ = 0, end_ = 0;
};

// One launch at a time. A fiber takes thread after thread as long as they end without waiting, so kernels without barriers run as plain calls in a
// loop.
class Executor {
 public:
  void run_grid(const std::string& kernel, Dim grid, Dim block, size_t shared_bytes, size_t shared_limit, const std::function<void()>& body);
  int barrier(Vote vote, int value, Place where);
  uint64_t warp_operation(const WarpCall& call);

  Memory* shared(size_t from, size_t bytes, size_t alignment);
  void use_static(Memory& memory);
  std::string whereabouts() const;
  std::string describe_phase(uint32_t phase) const;
  [[noreturn]] void fail_launch();

  uint64_t seed = 0;
  int64_t switches = 0;

 private:
  void run_block();
  void work(Fiber& self);
  static void fiber_entry();
  void leave(Fiber& from);
  void wait(State state);
  void make_current(Thread& thread);
  void new_phase();
  void release_barrier();
  void shape_block(Dim block);
  const std::vector<int>& order(size_t n);
  Fiber* idle_fiber();
  void abandon();
  [[noreturn]] void report_deadlock();
  std::string waits_for(const Thread& thread) const;
  Thread& current() { return threads_[static_cast<size_t>(now.thread)]; }
  std::span<Thread> warp_of(const Thread& thread);
  std::array<const WarpCall*, lanes> matching_calls(const WarpCall& call, std::span<Thread> warp, int lane);

  std::string kernel_ = "host";
  bool running_ = false;
  const std::function<void()>* body_ = nullptr;
  size_t shared_limit_ = 0, shared_used_ = 0;
  Memory dynamic_{Memory::Kind::shared, "dynamic shared memory", 0, 0x10000, 0};
  std::vector<uint32_t> block_phases_;  // the first phase of each block of this launch, and
  std::vector<Dim> block_indices_;      // which block it was
  std::vector<Thread> threads_;
  std::vector<WarpClocks> clocks_;  // of each warp: at rest but after a __syncwarp,
  bool clocks_moved_ = false;
  std::vector<uint32_t> lanes_waiting_;  // and its lanes that are in a warp operation
  std::vector<int> order_, sequence_;    // what order() gives
  std::vector<int> starts_;              // the threads in the order in which they start,
  size_t started_ = 0;                   // and how many have
  Queue queue_;
  size_t done_ = 0, waiting_ = 0;
  int vote_any_ = 0, vote_count_ = 0;
  std::exception_ptr error_;
  std::mt19937_64 random_;

  std::optional<Fiber> host_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* entering_ = nullptr;
};

Executor& executor();

}  // namespace cuda_emulator
