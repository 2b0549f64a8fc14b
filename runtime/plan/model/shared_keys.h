// SharedKeys: where keys and values lie where ranks share sequences (context.h).
//
// T: any type of the compute dtype's size. Thread rule: plain values.
#pragma once

#include <cstdint>

#include "runtime/base/memory.h"
#include "runtime/plan/model/llama_sizes.h"

namespace shardrun::plan {

using base::Cursor;

// Keys and values of one layer where ranks share sequences: of all tokens in the sequence's order, and by rank.
template <typename T>
struct SharedKeys {
  T* kv = nullptr;                        // (B,T,2K·D)
  float *dkv = nullptr, *dsum = nullptr;  // (B,T,2K·D), and this rank's part of the sum (N,2K·D)
  // (ranks,N,2K·D): as keys and values arrive, or as their gradients leave.
  T* arriving = nullptr;
  float* leaving = nullptr;

  void take(const LlamaSizes& s, Cursor& scratch) {
    const int64_t width = 2 * s.K * s.D;
    scratch.take(kv, s.B * s.T * width);
    scratch.take(dkv, s.B * s.T * width);
    scratch.take(dsum, s.N * width);
    scratch.take(leaving, s.B * s.T * width);
    arriving = reinterpret_cast<T*>(leaving);
  }
};

}  // namespace shardrun::plan
