// How much of its activations a model keeps between forward and backward, and where.
//
// Thread rule: plain values; Cursor is thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardrun::model {

// What backward computes again so that forward need not keep it.
enum class Checkpointing {
  kNone,
  kSelective,  // norms and activation functions: one pass over memory each
  kFull,       // everything of a layer but its input
};

// What the model will hold; it allocates exactly these, once, in create().
struct ActivationBytes {
  int64_t resident = 0;
  int64_t offloaded = 0;  // in a file, of which two layers' worth is in memory at a time
  int64_t offload_window = 0;
};

// Hands out pieces of memory, or counts them when there is none.
class Cursor {
 public:
  explicit Cursor(std::byte* memory) : memory_(memory) {}
  template <typename U>
  void take(U*& pointer, int64_t count) {
    constexpr int64_t kAlignment = 64;
    pointer = memory_ == nullptr ? nullptr : reinterpret_cast<U*>(memory_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(U)) + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Pieces that are given back to the system one by one start on a page of their own.
  void start_page() { bytes_ = (bytes_ + 4095) / 4096 * 4096; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

}  // namespace shardrun::model
