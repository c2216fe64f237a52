#include "common/executor/cuda/fiber.h"

#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace smartgen::executor::cuda::emulate {
namespace {

constexpr size_t kGuard = 4096;
constexpr size_t kStack = 64 * 1024;

thread_local Fiber* running = nullptr;

void StartSwitch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* bottom,
                 [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#endif
}

void FinishSwitch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** bottom,
                  [[maybe_unused]] size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
#endif
}

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuard, PROT_NONE);
  stack_ = static_cast<std::byte*>(memory) + kGuard;
}

Fiber::~Fiber() { munmap(stack_ - kGuard, kGuard + kStack); }

void Fiber::Start(Body body, void* argument) {
  body_ = body;
  argument_ = argument;
  // A fiber whose last body returned waits in Enter for the next one.
  if (returned_) return;
  entered_ = false;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStack);  // frames that were dropped
#endif
}

bool Fiber::Resume() {
  returned_ = false;
  running = this;
  StartSwitch(&resumer_fake_stack_, stack_, kStack);
  if (_setjmp(resumer_) == 0) {
    if (entered_) _longjmp(here_, 1);
    entered_ = true;
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = kStack;
    context_.uc_link = nullptr;
    makecontext(&context_, &Fiber::Enter, 0);
    setcontext(&context_);
  }
  Fiber* self = running;
  running = nullptr;
  FinishSwitch(self->resumer_fake_stack_, nullptr, nullptr);
  return !self->returned_;
}

void Fiber::SwitchBack() {
  StartSwitch(&fake_stack_, resumer_bottom_, resumer_size_);
  if (_setjmp(here_) == 0) _longjmp(resumer_, 1);
  Fiber* self = running;
  FinishSwitch(self->fake_stack_, &self->resumer_bottom_, &self->resumer_size_);
}

void Fiber::Suspend() { running->SwitchBack(); }

void Fiber::Enter() {
  FinishSwitch(nullptr, &running->resumer_bottom_, &running->resumer_size_);
  for (;;) {
    running->body_(running->argument_);
    running->returned_ = true;
    running->SwitchBack();
  }
}

}  // namespace smartgen::executor::cuda::emulate
