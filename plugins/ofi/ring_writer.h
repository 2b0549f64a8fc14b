// RingWriter: fills chunks of memory that another rank has read, in the faster of two ways.
//
// Between CPUs with a last cache in common a chunk is written at 11 GB/s, and its reader finds it in that cache. Between others each
// line must first be taken away from the reader's cache, which goes at 2.3 GB/s; stores that pass the caches by go at 10 to 15 between
// any. No register tells how far apart two ranks are, and hosts move virtual CPUs about, so a writer times what it does
// (docs/decisions/0143-a-ring-is-filled-past-caches-that-are-far-away.md).
//
// Thread rule: owned by a region, whose thread alone calls it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "plugins/ofi/copy.h"

namespace shardrun::ofi {

// Which way the next chunk goes.
class WayToRing {
 public:
  static constexpr uint64_t kLeastBytes = 8 << 10;  // smaller chunks go through the caches, and tell nothing
  // Chunks past the caches before these are tried again: few at first, for a ring's first chunks are slow since its pages are new,
  // then twice as many each time.
  static constexpr int kFirstTrusted = 8, kMostTrusted = 256;

  bool passes_caches() const { return past_ > 0; }

  // Says how long a chunk of at least kLeastBytes took on the way that was said. One that is slow may have been interrupted; two are
  // not.
  void took(uint64_t bytes, std::chrono::nanoseconds time) {
    constexpr int64_t kLeastBytesPerMicrosecond = 4000;
    if (past_ > 0) {
      --past_;
      return;
    }
    const bool is_slow = static_cast<int64_t>(bytes) * 1000 < time.count() * kLeastBytesPerMicrosecond;
    if (is_slow && was_slow_) {
      past_ = trusted_;
      trusted_ = std::min(2 * trusted_, kMostTrusted);
    } else if (!is_slow) {
      trusted_ = kFirstTrusted;
    }
    was_slow_ = is_slow;
  }

 private:
  int past_ = 0, trusted_ = kFirstTrusted;
  bool was_slow_ = false;
};

class RingWriter {
 public:
  // Copies to a place in a ring. Readers see the bytes once the chunk is published.
  void copy(std::byte* to, const std::byte* from, uint64_t bytes) {
    using Clock = std::chrono::steady_clock;
    if (bytes < WayToRing::kLeastBytes) return copy_bytes(to, from, bytes);
    const auto begin = Clock::now();
    way_.passes_caches() ? copy_past_caches(to, from, bytes) : copy_bytes(to, from, bytes);
    way_.took(bytes, Clock::now() - begin);
  }

 private:
  WayToRing way_;
};

}  // namespace shardrun::ofi
