#include "cuda_emulator/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "cuda_emulator/block.h"
#include "cuda_emulator/report.h"

namespace cuda_emulator {

std::string text(const Dim& d) { return fmt::format("({}, {}, {})", d.x, d.y, d.z); }
std::string text(const Place& at) {
  const std::string_view file = at.file_name();
  return fmt::format("{}:{}", file.substr(file.find_last_of('/') + 1), at.line());
}

Executor& executor() {
  static Executor one;
  return one;
}

// 0 to n - 1, and perhaps more behind; valid until the next call.
const std::vector<int>& Executor::order(size_t n) {
  if (sequence_.size() < n) {
    sequence_.resize(n);
    std::iota(sequence_.begin(), sequence_.end(), 0);
  }
  if (seed == 0) return sequence_;
  order_.assign(sequence_.begin(), sequence_.begin() + static_cast<std::ptrdiff_t>(n));
  std::shuffle(order_.begin(), order_.end(), random_);
  return order_;
}

void Executor::shape_block(Dim block) {
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == threads_.size() && block.x == block_size.x && block.y == block_size.y) return;
  threads_.assign(threads, {});
  for (unsigned t = 0; t < threads; ++t) threads_[t].index = {t % block.x, t / block.x % block.y, t / block.x / block.y};
  clocks_.assign((threads + lanes - 1) / lanes, {});
  lanes_waiting_.assign(clocks_.size(), 0);
}

void Executor::run_grid(const std::string& kernel, Dim grid, Dim block, size_t shared_bytes, size_t shared_limit, const std::function<void()>& body) {
  if (running_) violation("launch from within a kernel");
  kernel_ = kernel;
  running_ = true;
  body_ = &body;
  shared_limit_ = shared_limit;
  shape_block(block);
  block_size = block;
  grid_size = grid;
  if (seed != 0) random_.seed(seed);
  host_.emplace();
  dynamic_.resize(shared_bytes);
  now.launch_start = ++now.phase;
  block_phases_.clear();
  block_indices_.clear();
  const auto finish = [&] {
    now.thread = -1;
    now.launch_start = now.block_start = ++now.phase;  // what was written is ordered before all that follows
    running_ = false;
  };
  const auto run = [&](int number) {
    const auto b = static_cast<unsigned>(number);
    block_index = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    run_block();
  };
  try {
    const size_t blocks = size_t{grid.x} * grid.y * grid.z;
    if (seed == 0) {
      for (size_t number = 0; number < blocks; ++number) run(static_cast<int>(number));
    } else {
      const std::vector<int> numbers = order(blocks);
      for (const int number : numbers) run(number);
    }
  } catch (...) {
    finish();
    throw;
  }
  finish();
}

void Executor::run_block() {
  for (Thread& thread : threads_) thread.state = State::unstarted;
  new_phase();
  now.block_start = now.phase;
  block_phases_.push_back(now.phase);
  block_indices_.push_back(block_index);
  shared_used_ = dynamic_.size();
  std::fill(lanes_waiting_.begin(), lanes_waiting_.end(), 0);
  done_ = waiting_ = started_ = 0;
  queue_.clear();
  const std::vector<int>& first = order(threads_.size());
  starts_.assign(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(threads_.size()));
  leave(*host_);
  if (error_) fail_launch();
  if (done_ < threads_.size()) report_deadlock();
}

void Executor::new_phase() {
  if (++now.phase == 0) violation("more than 2^32 barriers and blocks in one process");
  if (!clocks_moved_) return;
  for (WarpClocks& clocks : clocks_)
    if (clocks.time != 0) clocks = {};
  clocks_moved_ = false;
}

void Executor::make_current(Thread& thread) {
  now.thread = static_cast<int>(&thread - threads_.data());
  now.warp = &clocks_[static_cast<size_t>(now.thread / lanes)];
  thread_index = thread.index;
}

Fiber* Executor::idle_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(&Executor::fiber_entry));
    idle_.push_back(fibers_.back().get());
  }
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

void Executor::fiber_entry() {
  Fiber::started();
  executor().work(*executor().entering_);
}

// What every fiber does: takes threads that have not started yet, of which there is one.
void Executor::work(Fiber& self) {
  while (true) {
    Thread& thread = threads_[static_cast<size_t>(starts_[started_++])];
    thread.fiber = &self;
    make_current(thread);
    try {
      (*body_)();
    } catch (...) {
      error_ = std::current_exception();
    }
    thread.state = State::done;
    ++done_;
    if (!error_ && started_ < threads_.size()) continue;
    idle_.push_back(&self);
    leave(self);
  }
}

// Gives way to the next thread that can go on, or to the host when there is none; returns when this fiber is wanted again.
void Executor::leave(Fiber& from) {
  Fiber* to = &*host_;
  if (!error_ && started_ < threads_.size()) {
    to = idle_fiber();
  } else if (!error_ && !queue_.empty()) {
    Thread& next = threads_[static_cast<size_t>(queue_.pop())];
    make_current(next);
    to = next.fiber;
  }
  if (to == &from) return;
  entering_ = to;
  Fiber::run(from, *to);
}

void Executor::wait(State state) {
  Thread& me = current();
  me.state = state;
  ++switches;
  leave(*me.fiber);
}

void Executor::fail_launch() {
  abandon();
  std::rethrow_exception(std::exchange(error_, nullptr));
}

// Threads that wait will never go on: their fibers start afresh.
void Executor::abandon() {
  for (Thread& thread : threads_) {
    if (thread.state == State::done || thread.state == State::unstarted) continue;
    thread.fiber->restart(&Executor::fiber_entry);
    idle_.push_back(thread.fiber);
  }
  queue_.clear();
}

Memory* Executor::shared(size_t from, size_t bytes, size_t alignment) {
  if (!running_) violation("shared memory is used on the host");
  if (from % alignment != 0) violation(fmt::format("shared memory from byte {}, which is not a multiple of {}", from, alignment));
  if (bytes > dynamic_.size() || from > dynamic_.size() - bytes)
    violation(fmt::format("{} bytes from byte {} of {} are wanted", bytes, from, dynamic_.name()));
  return &dynamic_;
}

void Executor::use_static(Memory& memory) {
  if (!running_) violation("shared memory is used on the host");
  if (memory.used_in == now.block_start) return;
  memory.used_in = now.block_start;
  shared_used_ += memory.size();
  if (shared_used_ > shared_limit_)
    violation(fmt::format("{} bytes of dynamic and static shared memory, the limit is {}", shared_used_, shared_limit_));
}

std::string Executor::whereabouts() const {
  if (!running_) return "[host]";
  return fmt::format("[{}] block {}, thread {}", kernel_, text(block_index), now.thread < 0 ? "none" : text(thread_index));
}

std::string Executor::describe_phase(uint32_t phase) const {
  const auto after = std::upper_bound(block_phases_.begin(), block_phases_.end(), phase);
  if (after == block_phases_.begin()) return "an earlier launch";
  const auto i = static_cast<size_t>(after - block_phases_.begin()) - 1;
  return fmt::format("block {} after {} barriers", text(block_indices_[i]), phase - block_phases_[i]);
}

namespace {

uint64_t seed_from_environment() {
  const char* const value = std::getenv("CUDA_EMULATOR_SEED");
  return value ? std::strtoull(value, nullptr, 10) : 0;
}
const bool seeded = [] { return executor().seed = seed_from_environment(), true; }();

}  // namespace

void run_grid(const std::string& kernel, Dim grid, Dim block, size_t shared_bytes, size_t shared_limit, const std::function<void()>& body) {
  executor().run_grid(kernel, grid, block, shared_bytes, shared_limit, body);
}
void set_seed(uint64_t seed) { executor().seed = seed; }
int64_t switch_count() { return executor().switches; }

Memory* shared_memory(size_t from, size_t bytes, size_t alignment) { return executor().shared(from, bytes, alignment); }
void static_memory(Memory*& memory, size_t bytes) {
  // Lives until the end of the process, as static variables do.
  static std::vector<std::unique_ptr<Memory>> all;
  if (!memory) {
    all.push_back(std::make_unique<Memory>(Memory::Kind::shared, "a shared array", 0, 0x10000, bytes));
    memory = all.back().get();
  }
  executor().use_static(*memory);
}

std::string whereabouts() { return executor().whereabouts(); }
std::string describe_phase(uint32_t phase) { return executor().describe_phase(phase); }
void violation(const std::string& what) { throw Error(whereabouts() + ": " + what); }

}  // namespace cuda_emulator
