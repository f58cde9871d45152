#include "cuda_emulator/heap.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "cuda_emulator/fiber.h"
#include "cuda_emulator/pointer.h"
#include "cuda_emulator/report.h"
#include "cuda_emulator/streams.h"

namespace cuda_emulator {

namespace {

constexpr size_t address_space = size_t{64} << 30, alignment = 256;
uintptr_t space_begin = 0;  // plain: the signal handler reads it
int64_t holds = 0;
struct sigaction previous_action {};

// Every address of device memory is inaccessible (the contents are kept elsewhere), so the CPU stops host code that dereferences one at that very
// instruction. This says why and lets whoever was in charge of such faults before have its turn.
void on_fault(int signal, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  char text[200] = "";
  if (at >= space_begin && at < space_begin + address_space)
    std::snprintf(text, sizeof text, "[cuda_emulator] device memory was touched without a dptr, by host code: address %p\n", info->si_addr);
  else if (Fiber::is_overflow(info->si_addr))
    std::snprintf(text, sizeof text, "[cuda_emulator] a thread of a kernel overflowed its stack\n");
  for (size_t done = 0; text[done] != '\0';) {
    size_t end = done;
    while (text[end] != '\0') ++end;
    const ssize_t n = write(STDERR_FILENO, text + done, end - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  sigaction(signal, &previous_action, nullptr);  // returning repeats the access
}

// Test frameworks change the handler for each test, so this is asked at every allocation.
void guard_addresses() {
  static char stack[64 << 10];
  struct sigaction present {};
  sigaction(SIGSEGV, nullptr, &present);
  if ((present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == on_fault) return;
  previous_action = present;
  stack_t alternative{};
  if (sigaltstack(nullptr, &alternative) == 0 && (alternative.ss_flags & SS_DISABLE) != 0) {
    alternative = {};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
  }
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}

class Heap {
 public:
  Heap() {
    void* const space = mmap(nullptr, address_space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) throw std::bad_alloc();
    space_begin = next_ = reinterpret_cast<uintptr_t>(space);
  }
  ~Heap() {
    const std::string left = leaks(static_cast<size_t>(devices_used_));
    if (left.empty()) return;
    std::fprintf(stderr, "%s", left.c_str());
    std::fflush(nullptr);
    std::_Exit(1);
  }

  void* allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const int device = current_device();
    size_t& used = in_use[device];
    if (bytes == 0 || used > limit || bytes > limit - used) return nullptr;
    guard_addresses();
    const size_t room = (bytes + alignment - 1) / alignment * alignment + alignment;  // what lies just past the end belongs to nobody else
    place(room);
    const uintptr_t address = next_;
    for (auto it = memories_.lower_bound(address); it != memories_.end() && it->first < address + room;) it = forget(it);  // long dead
    memories_[address] = std::make_unique<Memory>(Memory::Kind::global, "device memory", ++count_, address, bytes, device);
    next_ += room;
    used += bytes;
    devices_used_ = std::max(devices_used_, device + 1);
    return reinterpret_cast<void*>(address);
  }

  void deallocate(void* pointer) {
    const std::lock_guard lock(mutex_);
    Memory* const memory = find(pointer);
    if (!memory) violation(fmt::format("free of {}, which is not device memory", pointer));
    if (memory->address() != reinterpret_cast<uintptr_t>(pointer)) violation(fmt::format("free of an address inside {}", memory->name()));
    if (!memory->alive()) violation(fmt::format("second free of {}", memory->name()));
    in_use[memory->device()] -= memory->size();
    memory->release();
    dead_.push_back(memory->address());
    while (dead_.size() > most_dead && holds == 0) {
      const auto it = memories_.find(dead_.front());
      dead_.pop_front();
      if (it != memories_.end() && !it->second->alive()) forget(it);
    }
  }

  Memory* find(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    Memory*& lately = lately_[at / alignment % lately_.size()];
    if (lately && lately->address() == at) return lately;
    auto after = memories_.upper_bound(at);
    if (after == memories_.begin()) return nullptr;
    Memory* const memory = std::prev(after)->second.get();
    if (at > memory->address() + memory->size()) return nullptr;
    if (memory->address() == at) lately = memory;
    return memory;
  }

  // `kept`: so many pieces of pinned memory may stay.
  std::string leaks(size_t kept) {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [address, memory] : memories_)
      if (memory->alive()) text += fmt::format("[cuda_emulator] leak: {} was never freed\n", memory->name());
    if (pinned_.size() <= kept) return text;
    for (const auto& [address, bytes] : pinned_) text += fmt::format("[cuda_emulator] leak: pinned host memory ({} bytes) was never freed\n", bytes);
    return text;
  }

  void* allocate_pinned(size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* const memory = bytes == 0 ? nullptr : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory) pinned_[reinterpret_cast<uintptr_t>(memory)] = bytes;
    devices_used_ = std::max(devices_used_, current_device() + 1);
    return memory;
  }
  void deallocate_pinned(void* pointer) {
    const std::lock_guard lock(mutex_);
    if (pinned_.erase(reinterpret_cast<uintptr_t>(pointer)) == 0) violation(fmt::format("free of {}, which is not pinned host memory", pointer));
    std::free(pointer);
  }
  bool is_pinned(const void* pointer, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    const auto after = pinned_.upper_bound(at);
    if (after == pinned_.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return at - begin < size && bytes <= size - (at - begin);
  }

  size_t limit = bytes_from_environment();
  std::map<int, size_t> in_use;  // of each device

 private:
  using Memories = std::map<uintptr_t, std::unique_ptr<Memory>>;

  static size_t bytes_from_environment() {
    const char* const value = std::getenv("CUDA_EMULATOR_BYTES");
    return value ? std::strtoull(value, nullptr, 10) : size_t{4} << 30;
  }

  Memories::iterator forget(Memories::iterator it) {
    Memory*& lately = lately_[it->first / alignment % lately_.size()];
    if (lately == it->second.get()) lately = nullptr;
    return memories_.erase(it);
  }

  // Moves next_ on to `room` bytes without living memory, from the begin of the range when its end is reached.
  void place(size_t room) {
    bool wrapped = false;
    while (true) {
      if (next_ + room > space_begin + address_space) {
        if (wrapped) throw std::bad_alloc();
        wrapped = true;
        next_ = space_begin;
      }
      auto it = memories_.lower_bound(next_);
      while (it != memories_.end() && it->first < next_ + room && !it->second->alive()) ++it;
      if (it == memories_.end() || it->first >= next_ + room) return;
      next_ = it->first + (it->second->size() + alignment - 1) / alignment * alignment + alignment;
    }
  }

  static constexpr size_t most_dead = size_t{1} << 12;  // more would leave holes in the heap of the process
  std::recursive_mutex mutex_;
  Memories memories_;  // by address; of the dead the latest, as long as their place is not used again
  std::deque<uintptr_t> dead_;
  std::array<Memory*, 1024> lately_{};  // found by their first address
  std::map<uintptr_t, size_t> pinned_;  // bytes by address
  uintptr_t next_ = 0;
  int64_t count_ = 0;
  int devices_used_ = 0;
};

Heap& heap() {
  static Heap one;
  return one;
}

}  // namespace

Hold::Hold() { ++holds; }
Hold::~Hold() { --holds; }

size_t device_bytes() { return heap().limit; }
void set_device_bytes(size_t bytes) { heap().limit = bytes; }
size_t device_bytes_in_use(int device) { return heap().in_use[device]; }
size_t device_bytes_in_use() { return device_bytes_in_use(current_device()); }
void* allocate(size_t bytes) { return heap().allocate(bytes); }
void deallocate(void* address) { heap().deallocate(address); }
void* allocate_pinned(size_t bytes) { return heap().allocate_pinned(bytes); }
void deallocate_pinned(void* address) { heap().deallocate_pinned(address); }
bool is_pinned(const void* address, size_t bytes) { return heap().is_pinned(address, bytes); }
std::string leaks() { return heap().leaks(0); }

bool is_device_address(const void* address) {
  heap();
  const auto at = reinterpret_cast<uintptr_t>(address);
  return at >= space_begin && at < space_begin + address_space;
}

Memory* memory_around(const void* address) { return heap().find(address); }

Memory* find_memory(const void* address) {
  Memory* const memory = heap().find(address);
  if (!memory) violation(fmt::format("{} is passed for a device pointer, but is not device memory", address));
  if (memory->device() != current_device())
    violation(fmt::format("{} is passed to device {}, but belongs to device {}", memory->name(), current_device(), memory->device()));
  return memory;
}

Memory& memory_at(const void* address, size_t bytes, const char* operation) {
  Memory* const memory = heap().find(address);
  if (!memory) violation(fmt::format("{}: {} is not device memory", operation, address));
  if (!memory->alive()) violation(fmt::format("{}: use of {} after it was freed", operation, memory->name()));
  const size_t offset = reinterpret_cast<uintptr_t>(address) - memory->address();
  if (bytes > memory->size() - offset) violation(fmt::format("{}: {} bytes from byte {} of {}", operation, bytes, offset, memory->name()));
  return *memory;
}

void check_access(const Memory* memory, std::ptrdiff_t offset, std::ptrdiff_t begin, std::ptrdiff_t end, const char* verb, size_t element,
                  size_t bytes, size_t alignment) {
  if (!memory) violation(fmt::format("{} through a null pointer", verb));
  if (now.thread < 0) violation(fmt::format("{} of {} by host code", verb, memory->name()));
  if (!memory->alive()) violation(fmt::format("{} of {} after it was freed", verb, memory->name()));
  const auto size = static_cast<std::ptrdiff_t>(element);
  if (offset < begin || offset + static_cast<std::ptrdiff_t>(bytes) > end)
    violation(fmt::format("{} out of bounds: element {} ({} bytes each) of the {} there are, in {}", verb, (offset - begin) / size, element,
                          (end - begin) / size, memory->name()));
  violation(fmt::format("{} of {} bytes at byte {} of {}, which is not aligned to {}", verb, bytes, offset, memory->name(), alignment));
}

}  // namespace cuda_emulator
