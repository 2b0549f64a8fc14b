#include "tests/emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#ifndef __x86_64__
#error "the emulated GPU switches stacks by x86-64 instructions only"
#endif

namespace shardrun::emulation {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

// Saves the registers that a callee has to preserve on the stack of `from`, and continues where `to` was left.
extern "C" void shardrun_switch_stacks(void** from, void* to);
asm(R"(
.text
.globl shardrun_switch_stacks
.type shardrun_switch_stacks, @function
shardrun_switch_stacks:
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
.globl shardrun_start_fiber
.type shardrun_start_fiber, @function
shardrun_start_fiber:
  movq %r12, %rdi
  callq *%rbx
  ud2
)");
extern "C" void shardrun_start_fiber();

Fiber::~Fiber() {
  if (stack_ != nullptr) munmap(stack_, kPage + stack_bytes_);
}

void Fiber::prepare(void (*body)(void*), void* argument) {
  if (stack_ == nullptr) {
    void* const memory = mmap(nullptr, kPage + stack_bytes_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) != 0) std::abort();
    stack_ = static_cast<std::byte*>(memory);
  }
  // What shardrun_switch_stacks pops: r15 r14 r13 r12 rbx rbp, then where it returns to with an aligned stack.
  auto* const top = reinterpret_cast<void**>(stack_ + kPage + stack_bytes_) - 9;
  top[0] = top[1] = top[2] = top[5] = nullptr;
  top[3] = argument;
  top[4] = reinterpret_cast<void*>(body);
  top[6] = reinterpret_cast<void*>(&shardrun_start_fiber);
  top[7] = nullptr;
  own_ = top;
}

void Fiber::resume() {
  shardrun_switch_stacks(&callers_, own_);
}

void Fiber::pause() {
  shardrun_switch_stacks(&own_, callers_);
}

bool Fiber::has_overflown_to(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return stack_ != nullptr && at >= stack_ && at < stack_ + kPage;
}

}  // namespace shardrun::emulation
