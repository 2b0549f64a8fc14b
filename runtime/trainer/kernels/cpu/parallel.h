// parallel_for: spreads rows over the OpenMP threads of the calling thread, in contiguous pieces.
//
// This header is internal to kernels/cpu. With one thread no OpenMP region is entered.
//
// Thread rule: `body(begin, end)` runs concurrently on disjoint ranges.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace shardrun::kernels {

template <typename Body>
void parallel_for(int64_t count, int64_t smallest_piece, const Body& body) {
  const int64_t threads = std::min<int64_t>(
      omp_get_max_threads(), (count + smallest_piece - 1) / std::max<int64_t>(1, smallest_piece));
  if (threads <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(threads)) schedule(static, 1)
  for (int64_t piece = 0; piece < threads; ++piece)
    body(count * piece / threads, count * (piece + 1) / threads);
}

inline constexpr int64_t kChunk = 2048;  // a few chunks of fp32 stay in the first-level cache

// Runs body(begin, size) over chunks of `count` elements, on all threads.
template <typename Body>
void for_chunks(int64_t count, const Body& body) {
  parallel_for((count + kChunk - 1) / kChunk, 32, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * kChunk; at < std::min(count, end * kChunk); at += kChunk) {
      body(at, std::min(kChunk, count - at));
    }
  });
}

}  // namespace shardrun::kernels
