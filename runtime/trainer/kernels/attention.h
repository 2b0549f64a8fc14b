// Attention: what a token sees, and the ops of queries, keys and values. A part of ops.h, whose legend and rules hold here.
//
// Thread rule: as ops.h.
#pragma once

#include <cstdint>

#include "runtime/plan/model/ops.h"
#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels {

using plan::AttentionShape;

// Token t of a sequence sees the tokens u of its own document that are no padding, and with `causal` only u ≤ t.
// A token that sees nothing gets zeros. Tiles that nobody sees cost nothing.
struct Visibility {
  bool causal = true;
  const int32_t* begins = nullptr;  // (B,T): the column at which each token's document begins; null: 0
  const int32_t* lengths =
      nullptr;  // (B): how many tokens at the start of each sequence are no padding; null: T
  // With causal, on a CPU: how many tokens a token sees, itself and those right before it; 0: all of them.
  int64_t window = 0;
};

// Attention with grouped key/value heads, tiled (Dao 2023): no T×T matrix ever exists.
template <typename T>
class AttentionOps {
 public:
  virtual ~AttentionOps() = default;

  // Rotary position embedding, half-rotation layout (Su et al. 2021, as in LlamaForCausalLM): rotates `heads` heads of D in
  // place at the start of each row of x (B·T, stride), by the angles of plan::rope_table(). `inverse` is for backward.
  virtual void rope(T* x, const float* table, int64_t B, int64_t length, int64_t heads, int64_t D,
                    int64_t stride, bool inverse) const = 0;
  // Computes out (B·T, H·D) from qkv (B·T, (H+2K)·D), which holds query heads, key heads and value heads of each
  // token, and lse (B,H,T) fp32, the log of the softmax's denominator, which is kept for backward. Scores are scaled
  // with 1/sqrt(D).
  virtual void forward(T* out, float* lse, const T* qkv, const AttentionShape& shape,
                       const Visibility& visibility = {}) const = 0;
  // Overwrites dqkv (B·T, (H+2K)·D).
  virtual void backward(T* dqkv, const T* dout, const T* out, const T* qkv, const float* lse,
                        const AttentionShape& shape, const Visibility& visibility = {}) const = 0;
  // The same where ranks share sequences (plan/context.h), of the R = shape.own_tokens() tokens that this rank has of each: qkv
  // (B·R, (H+2K)·D), out (B·R, H·D) and lse (B,H,R) are of those, kv (B·T, 2K·D) has keys, then values, of all tokens, and so
  // has visibility. On a CPU.
  virtual void shared_forward(T* out, float* lse, const T* qkv, const T* kv, const AttentionShape& shape,
                              const Visibility& visibility = {}) const = 0;
  // Overwrites the queries' part of dqkv (B·R, (H+2K)·D), and dkv (B·T, 2K·D) fp32 with what this rank's queries give to the
  // keys and values of all tokens.
  virtual void shared_backward(T* dqkv, float* dkv, const T* dout, const T* out, const T* qkv, const T* kv,
                               const float* lse, const AttentionShape& shape,
                               const Visibility& visibility = {}) const = 0;
};

}  // namespace shardrun::kernels
