// A stack that runs in turns with its caller's: one emulated GPU thread, or a process of tests/simulation.
//
// Switching saves what a function call saves, so it costs as much as a call. Thread rule: one thread at a time.
#pragma once

#include <cstddef>

namespace shardrun::emulation {

class Fiber {
 public:
  explicit Fiber(size_t stack_bytes = size_t{128} << 10) : stack_bytes_(stack_bytes) {}
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes the next resume() call body(argument), which ends with pause() and never returns. What ran
  // before is forgotten.
  void prepare(void (*body)(void*), void* argument);
  // Runs until pause() is called on the fiber's stack.
  void resume();
  void pause();
  // Returns whether the address is in the page below the stack.
  bool has_overflown_to(const void* address) const;

 private:
  size_t stack_bytes_;
  std::byte* stack_ = nullptr;
  void *own_ = nullptr, *callers_ = nullptr;  // stack pointers
};

}  // namespace shardrun::emulation
