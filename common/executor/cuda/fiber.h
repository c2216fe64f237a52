// Stacks that one thread switches among. Used by the emulator alone.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>

namespace smartgen::executor::cuda::emulate {

// Runs a function again and again, each time until it suspends or returns. One thread; not from
// within another fiber. The first entry goes through ucontext, switches through setjmp and longjmp,
// which, unlike swapcontext, make no system call.
class Fiber {
 public:
  using Body = void (*)(void*);
  // Throws std::bad_alloc without memory for a stack (64 KiB and a guard page).
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next Resume begins body(argument), wherever the fiber stood before.
  void Start(Body body, void* argument);
  // Until the body suspends (true) or returns (false: Start comes before the next Resume).
  bool Resume();
  // Inside a body: back to who resumed it.
  static void Suspend();

 private:
  static void Enter();
  void SwitchBack();

  std::byte* stack_ = nullptr;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  bool entered_ = false;
  bool returned_ = false;
  ucontext_t context_;
  jmp_buf here_;
  jmp_buf resumer_;
  // What the address sanitizer must be told about stacks.
  void* fake_stack_ = nullptr;
  void* resumer_fake_stack_ = nullptr;
  const void* resumer_bottom_ = nullptr;
  size_t resumer_size_ = 0;
};

}  // namespace smartgen::executor::cuda::emulate
