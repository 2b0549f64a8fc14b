// A stack that runs in turns with its caller's: one emulated thread of a GPU.
//
// Switching keeps what a function call keeps, so it costs as much as one. Thread rule: one thread at a time.
#pragma once

#include <cstddef>

namespace shardrun::emulation {

class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls body(argument), which ends with pause() and never returns. What ran before is forgotten.
  void prepare(void (*body)(void*), void* argument);
  // Until pause() is called on the fiber's stack.
  void resume();
  void pause();
  // Whether the address is in the page below the stack.
  bool has_overflown_to(const void* address) const;

 private:
  std::byte* stack_ = nullptr;
  void *own_ = nullptr, *callers_ = nullptr;  // stack pointers
};

}  // namespace shardrun::emulation
