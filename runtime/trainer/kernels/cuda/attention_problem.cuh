// What every attention kernel knows of its problem, whether plain (attention.cu) or in tiles (attention_tensor.cu).
//
// Heads of qkv are counted through: H of queries, then K of keys, then K of values.
//
// Thread rule: pure functions.
#pragma once

#include "runtime/trainer/kernels/cuda/launch.cuh"
#include "runtime/trainer/kernels/cuda/tiles.h"

namespace shardrun::kernels::cuda {

struct AttentionProblem {
  int64_t stride, out_stride;  // elements from a token to the next one, in qkv and in out
  int T, H, K, D;
  bool causal;
  const int32_t *begins, *lengths;
  float scale;

  AttentionProblem(const AttentionShape& s, const Visibility& v)
      : stride(s.qkv_stride()),
        out_stride(s.H * s.D),
        T(static_cast<int>(s.T)),
        H(static_cast<int>(s.H)),
        K(static_cast<int>(s.K)),
        D(static_cast<int>(s.D)),
        causal(v.causal),
        begins(v.begins),
        lengths(v.lengths),
        scale(1.0F / sqrtf(static_cast<float>(s.D))) {}

  __device__ Sight sight(int b) const {
    return {T, lengths == nullptr ? T : lengths[b], begins == nullptr ? nullptr : begins + int64_t{b} * T,
            causal};
  }
  // Return where a token's part of a head begins in qkv, and in out.
  __device__ int64_t at(int b, int t, int head) const { return (int64_t{b} * T + t) * stride + head * D; }
  __device__ int64_t out_at(int b, int t, int head) const {
    return (int64_t{b} * T + t) * out_stride + head * D;
  }
  // Returns where a head's numbers for each token begin: lse, delta (B,H,T).
  __device__ int64_t stat_at(int b, int head) const { return (int64_t{b} * H + head) * T; }
  // Returns the head of keys that a head of queries looks at; their values are K heads further.
  __device__ int key_head(int head) const { return H + head / (H / K); }
};

// Returns a grid of blocks, each of which takes `rows` tokens of one head of one sequence.
inline dim3 attention_grid(const AttentionShape& s, int64_t heads, int64_t rows) {
  return {static_cast<unsigned>(quotient_up(s.T, rows)), static_cast<unsigned>(heads),
          static_cast<unsigned>(s.B)};
}

}  // namespace shardrun::kernels::cuda
