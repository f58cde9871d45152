#include "cuda_emulator/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if CUDA_EMULATOR_OWN_SWITCH
// The registers that a call preserves, by the System V convention, are pushed; the stacks change; those of the other are popped.
asm(R"(
.text
.globl cuda_emulator_switch
.type cuda_emulator_switch,@function
cuda_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_emulator_switch, .-cuda_emulator_switch
)");
#endif

namespace cuda_emulator {

namespace {

constexpr size_t guard = 4096, stack_size = size_t{256} << 10;  // address space; only touched pages are memory

std::vector<const unsigned char*>& guards() {
  static auto& all = *new std::vector<const unsigned char*>;  // outlives every fiber, static ones too
  return all;
}

}  // namespace

Fiber::Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  void* bottom = nullptr;
  pthread_attr_getstack(&attributes, &bottom, &size_);
  pthread_attr_destroy(&attributes);
  stack_ = static_cast<unsigned char*>(bottom);
#endif
}

Fiber::Fiber(void (*entry)()) : size_(stack_size) {
  void* const memory = mmap(nullptr, guard + size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, guard, PROT_NONE);
  stack_ = static_cast<unsigned char*>(memory) + guard;
  // Stacks lie at multiples of large powers of two: begun all alike, they would meet in the same few lines of the cache.
  colour_ = guards().size() * 320 % 4096;
  guards().push_back(stack_ - guard);
  restart(entry);
}

Fiber::~Fiber() {
  if (size_ != stack_size || std::erase(guards(), stack_ - guard) == 0) return;  // not its own stack
  munmap(stack_ - guard, guard + size_);
}

bool Fiber::is_overflow(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  return std::any_of(guards().begin(), guards().end(), [&](const unsigned char* begin) {
    return at >= reinterpret_cast<uintptr_t>(begin) && at < reinterpret_cast<uintptr_t>(begin) + guard;
  });
}

void Fiber::restart(void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_, size_);
#endif
  fake_stack_ = nullptr;
#if CUDA_EMULATOR_OWN_SWITCH
  void** top = reinterpret_cast<void**>(stack_ + size_ - colour_);
  *--top = nullptr;  // the return address of entry, which does not return; keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = size_;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#endif
}

void Fiber::run_slowly(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_, to.size_);
#endif
#if CUDA_EMULATOR_OWN_SWITCH
  cuda_emulator_switch(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::started() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace cuda_emulator
