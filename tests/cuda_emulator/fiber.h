#pragma once
// Threads of control that take turns: each has its own stack, and one runs until it switches to another.

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1  // clang's way to say it
#endif
#endif
// Switching by hand takes 8 ns, ucontext 230 ns (it saves the signal mask, a system call each time); ucontext is for other machines.
#if defined(__x86_64__) && defined(__linux__) && !defined(CUDA_EMULATOR_UCONTEXT)
#define CUDA_EMULATOR_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

#if CUDA_EMULATOR_OWN_SWITCH
extern "C" void cuda_emulator_switch(void** save, void* load);
#endif

namespace cuda_emulator {

class Fiber {
 public:
  /// The stack that runs already.
  Fiber();
  /// A stack of its own, on which `entry` starts at the first switch; it must never return.
  explicit Fiber(void (*entry)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Forgets where it was: the next switch starts `entry` again. Destructors on its stack are not run.
  void restart(void (*entry)());
  /// Continues `to`; returns when somebody continues `from`, on the same thread of the host.
  static void run(Fiber& from, Fiber& to) {
#if CUDA_EMULATOR_OWN_SWITCH && !defined(__SANITIZE_ADDRESS__)
    cuda_emulator_switch(&from.stack_pointer_, to.stack_pointer_);
#else
    run_slowly(from, to);
#endif
  }
  /// The first thing that `entry` must call.
  static void started();
  /// Whether an address lies in the guard page below a fiber's stack.
  static bool is_overflow(const void* address);

 private:
  static void run_slowly(Fiber& from, Fiber& to);

  unsigned char* stack_ = nullptr;
  size_t size_ = 0, colour_ = 0;
#if CUDA_EMULATOR_OWN_SWITCH
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
  void* fake_stack_ = nullptr;  // AddressSanitizer's, which is told of every switch
};

}  // namespace cuda_emulator
