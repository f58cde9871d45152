#include "cuda_emulator/heap.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "cuda_emulator/fiber.h"
#include "cuda_emulator/pointer.h"
#include "cuda_emulator/report.h"

namespace cuda_emulator {

namespace {

constexpr size_t address_space = size_t{64} << 30, alignment = 256;
uintptr_t space_begin = 0;  // plain: the signal handler reads it
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
    const std::string left = leaks();
    if (left.empty()) return;
    std::fprintf(stderr, "%s", left.c_str());
    std::fflush(nullptr);
    std::_Exit(1);
  }

  void* allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes == 0 || bytes > limit - in_use) return nullptr;
    guard_addresses();
    const size_t room = (bytes + alignment - 1) / alignment * alignment + alignment;  // what lies just past the end belongs to nobody else
    place(room);
    const uintptr_t address = next_;
    memories_.erase(memories_.lower_bound(address), memories_.lower_bound(address + room));  // long dead
    memories_[address] = std::make_unique<Memory>(Memory::Kind::global, fmt::format("device memory #{} ({} bytes)", ++count_, bytes), address, bytes);
    next_ += room;
    in_use += bytes;
    return reinterpret_cast<void*>(address);
  }

  void deallocate(void* pointer) {
    const std::lock_guard lock(mutex_);
    Memory* const memory = find(pointer);
    if (!memory) violation(fmt::format("free of {}, which is not device memory", pointer));
    if (memory->address() != reinterpret_cast<uintptr_t>(pointer)) violation(fmt::format("free of an address inside {}", memory->name()));
    if (!memory->alive()) violation(fmt::format("second free of {}", memory->name()));
    in_use -= memory->size();
    memory->release();
  }

  Memory* find(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    auto after = memories_.upper_bound(at);
    if (after == memories_.begin()) return nullptr;
    Memory* const memory = std::prev(after)->second.get();
    return at <= memory->address() + memory->size() ? memory : nullptr;
  }

  std::string leaks() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [address, memory] : memories_)
      if (memory->alive()) text += fmt::format("[cuda_emulator] leak: {} was never freed\n", memory->name());
    return text;
  }

  size_t limit = size_t{4} << 30, in_use = 0;

 private:
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

  std::recursive_mutex mutex_;
  std::map<uintptr_t, std::unique_ptr<Memory>> memories_;  // by address, the dead too until their place is used again
  uintptr_t next_ = 0;
  int64_t count_ = 0;
};

Heap& heap() {
  static Heap one;
  return one;
}

}  // namespace

size_t device_bytes() { return heap().limit; }
void set_device_bytes(size_t bytes) { heap().limit = bytes; }
size_t device_bytes_in_use() { return heap().in_use; }
void* allocate(size_t bytes) { return heap().allocate(bytes); }
void deallocate(void* address) { heap().deallocate(address); }
std::string leaks() { return heap().leaks(); }

bool is_device_address(const void* address) {
  heap();
  const auto at = reinterpret_cast<uintptr_t>(address);
  return at >= space_begin && at < space_begin + address_space;
}

Memory* find_memory(const void* address) {
  Memory* const memory = heap().find(address);
  if (!memory) violation(fmt::format("{} is passed for a device pointer, but is not device memory", address));
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
