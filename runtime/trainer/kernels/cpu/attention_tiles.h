// Attention in bf16 by products of packed tiles (tile_products.h): scores and sums are fp32, probabilities and their gradients
// are rounded to bf16 where they enter products, as flash attention does (Dao 2023).
//
// Contracts are those of AttentionOps in kernels/ops.h. This header is internal to kernels/cpu.
//
// Thread rule: as the ops', the work is spread over the caller's threads.
#pragma once

#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels::tiles {

// Says whether this machine has the instructions and heads of this size fill their tiles.
bool can_attend(const AttentionShape& shape);

// `kv`, and `dkv` likewise, is qkv of a rank that has all tokens.
void attention_forward(Bf16* out, float* lse, const Bf16* qkv, const Bf16* kv, const AttentionShape& shape,
                       const Visibility& visibility);
// Gradient: Bf16, or float where ranks share sequences.
template <typename Gradient>
void attention_backward(Bf16* dqkv, Gradient* dkv, const Bf16* dout, const Bf16* out, const Bf16* qkv,
                        const Bf16* kv, const float* lse, const AttentionShape& shape,
                        const Visibility& visibility);

}  // namespace shardrun::kernels::tiles
