// Copies of bytes between memory of the caller and of the node.
//
// Thread rule: a pure function.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace shardrun::ofi {

#ifdef __SSE2__
constexpr uint64_t kCopiedLine = 64;  // of a cache

// Copies whole lines by `store(place, vector)` and moves all three behind them.
template <typename Store>
void copy_lines(std::byte*& to, const std::byte*& from, uint64_t& bytes, Store store) {
  for (; bytes >= kCopiedLine; bytes -= kCopiedLine, to += kCopiedLine, from += kCopiedLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from);
    auto* const target = reinterpret_cast<__m128i*>(to);
    // By name: g++ 12 takes an array through the stack.
    const __m128i first = _mm_loadu_si128(source), second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2), fourth = _mm_loadu_si128(source + 3);
    store(target, first);
    store(target + 1, second);
    store(target + 2, third);
    store(target + 3, fourth);
  }
}
#endif

// Does what memcpy does. glibc up to 2.38 takes `rep movsb` for the sizes of our chunks, which AMD's Zen 3 and 4 do slowly when the
// destination lies, within its page, a little behind the source: rings were filled at 2 GB/s so, and by this loop at 6.
inline void copy_bytes(std::byte* to, const std::byte* from, uint64_t bytes) {
#ifdef __SSE2__
  copy_lines(to, from, bytes, [](__m128i* place, __m128i vector) { _mm_storeu_si128(place, vector); });
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Does the same with stores that go to memory past the caches. They come before what the caller writes after them.
inline void copy_past_caches(std::byte* to, const std::byte* from, uint64_t bytes) {
#ifdef __SSE2__
  const uint64_t before = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kCopiedLine);
  if (before > 0) std::memcpy(to, from, before);
  to += before, from += before, bytes -= before;
  copy_lines(to, from, bytes, [](__m128i* place, __m128i vector) { _mm_stream_si128(place, vector); });
  _mm_sfence();
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace shardrun::ofi
