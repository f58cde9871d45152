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
std::string text(const std::source_location& at) {
  const std::string_view file = at.file_name();
  return fmt::format("{}:{}", file.substr(file.find_last_of('/') + 1), at.line());
}

Executor& executor() {
  static Executor one;
  return one;
}

std::vector<int> Executor::order(size_t n) {
  std::vector<int> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (seed != 0) std::shuffle(numbers.begin(), numbers.end(), random_);
  return numbers;
}

void Executor::run_grid(const std::string& kernel, Dim grid, Dim block, size_t shared_bytes, size_t shared_limit, const std::function<void()>& body) {
  if (running_) violation("launch from within a kernel");
  kernel_ = kernel;
  running_ = true;
  body_ = &body;
  shared_limit_ = shared_limit;
  block_size = block;
  grid_size = grid;
  random_.seed(seed);
  host_ = std::make_unique<Fiber>();
  dynamic_ = std::make_unique<Memory>(Memory::Kind::shared, fmt::format("dynamic shared memory ({} bytes)", shared_bytes), 0x10000, shared_bytes);
  threads_.assign(size_t{block.x} * block.y * block.z, {});
  clocks_.assign((threads_.size() + lanes - 1) / lanes, {});
  now.launch_start = ++now.phase;
  block_phases_.clear();
  block_indices_.clear();
  const auto finish = [&] {
    now.thread = -1;
    now.launch_start = now.block_start = ++now.phase;  // what was written is ordered before all that follows
    running_ = false;
    kernel_ = "host";
  };
  try {
    for (const int number : order(size_t{grid.x} * grid.y * grid.z)) {
      const auto b = static_cast<unsigned>(number);
      block_index = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
      run_block();
    }
  } catch (...) {
    finish();
    throw;
  }
  finish();
}

void Executor::run_block() {
  for (size_t i = 0; i < threads_.size(); ++i) {
    const auto t = static_cast<unsigned>(i);
    threads_[i] = {};
    threads_[i].index = {t % block_size.x, t / block_size.x % block_size.y, t / block_size.x / block_size.y};
  }
  new_phase();
  now.block_start = now.phase;
  block_phases_.push_back(now.phase);
  block_indices_.push_back(block_index);
  shared_used_ = dynamic_->size();
  statics_.clear();
  lanes_waiting_.assign(clocks_.size(), 0);
  done_ = waiting_ = 0;
  const auto first = order(threads_.size());
  queue_.assign(first.begin(), first.end());
  leave(*host_);
  if (error_) fail_launch();
  if (done_ < threads_.size()) report_deadlock();
}

void Executor::new_phase() {
  if (++now.phase == 0) violation("more than 2^32 barriers and blocks in one process");
  for (WarpClocks& clocks : clocks_)
    if (clocks.time != 0) clocks = {};
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

// What every fiber does: takes unstarted threads off the queue, which has one in front.
void Executor::work(Fiber& self) {
  while (true) {
    Thread& thread = threads_[static_cast<size_t>(queue_.front())];
    queue_.pop_front();
    thread.fiber = &self;
    make_current(thread);
    try {
      (*body_)();
    } catch (...) {
      error_ = std::current_exception();
    }
    thread.state = State::done;
    ++done_;
    if (!error_ && !queue_.empty() && threads_[static_cast<size_t>(queue_.front())].state == State::unstarted) continue;
    idle_.push_back(&self);
    leave(self);
  }
}

// Gives way to the next thread that can go on, or to the host when there is none; returns when this fiber is wanted again.
void Executor::leave(Fiber& from) {
  Fiber* to = host_.get();
  if (!error_ && !queue_.empty()) {
    Thread& next = threads_[static_cast<size_t>(queue_.front())];
    if (next.state == State::unstarted) {
      to = idle_fiber();
    } else {
      queue_.pop_front();
      make_current(next);
      to = next.fiber;
    }
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
  if (bytes > dynamic_->size() || from > dynamic_->size() - bytes)
    violation(fmt::format("{} bytes from byte {} of {} are wanted", bytes, from, dynamic_->name()));
  return dynamic_.get();
}

void Executor::use_static(Memory* memory) {
  if (!running_) violation("shared memory is used on the host");
  if (std::find(statics_.begin(), statics_.end(), memory) != statics_.end()) return;
  statics_.push_back(memory);
  shared_used_ += memory->size();
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
Memory* static_memory(Memory*& memory, size_t bytes) {
  // Lives until the end of the process, as static variables do.
  static std::vector<std::unique_ptr<Memory>> all;
  if (!memory) {
    all.push_back(std::make_unique<Memory>(Memory::Kind::shared, fmt::format("a shared array ({} bytes)", bytes), 0x10000, bytes));
    memory = all.back().get();
  }
  executor().use_static(memory);
  return memory;
}

std::string whereabouts() { return executor().whereabouts(); }
std::string describe_phase(uint32_t phase) { return executor().describe_phase(phase); }
void violation(const std::string& what) { throw Error(whereabouts() + ": " + what); }

}  // namespace cuda_emulator
