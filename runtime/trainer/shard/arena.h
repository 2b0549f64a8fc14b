// Arena: the one allocation behind a rank's sharded state, sized before step 0 and never grown.
//
// The trainer creates it with the bytes of a plan::ShardedState, the engine takes those buffers from it, and the
// trainer checks that used_bytes() equals planned_bytes() when everything is built.
//
// Thread rule: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/plan/sharded_state.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::shard {

class Arena {
 public:
  // Bytes that take<T>(count) will use.
  template <typename T>
  static constexpr int64_t bytes_of(int64_t count) {
    return plan::aligned_bytes(count * static_cast<int64_t>(sizeof(T)));
  }

  // Zeroed memory of `backend`, which outlives it. kIo with the size and the system's words when there is not that much.
  static base::Result<Arena> create(int64_t planned_bytes,
                                    kernels::Backend& backend = kernels::cpu_backend());

  // The next `count` elements, aligned to plan::kBufferAlignment, zero. More than was planned is a bug (CHECK).
  template <typename T>
  std::span<T> take(int64_t count) {
    return {reinterpret_cast<T*>(take_bytes(bytes_of<T>(count))), static_cast<size_t>(count)};
  }

  int64_t planned_bytes() const { return memory_.bytes(); }
  int64_t used_bytes() const { return used_bytes_; }

 private:
  explicit Arena(base::Memory memory) : memory_(std::move(memory)) {}
  std::byte* take_bytes(int64_t bytes);

  base::Memory memory_;
  int64_t used_bytes_ = 0;
};

}  // namespace shardrun::shard
