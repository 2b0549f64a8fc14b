// Attention in bf16 by products of packed tiles (tile_products.h): scores and sums are fp32, probabilities and their gradients
// are rounded to bf16 where they enter products, as flash attention does (Dao 2023).
//
// Contracts are those of AttentionOps::forward and backward in kernels/ops.h. This header is internal to kernels/cpu.
//
// Thread rule: as the ops', the work is spread over the caller's threads.
#pragma once

#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels::tiles {

// Says whether this machine has the instructions and heads of this size fill their tiles.
bool can_attend(const AttentionShape& shape);

void attention_forward(Bf16* out, float* lse, const Bf16* qkv, const AttentionShape& shape,
                       const Visibility& visibility);
void attention_backward(Bf16* dqkv, const Bf16* dout, const Bf16* out, const Bf16* qkv, const float* lse,
                        const AttentionShape& shape, const Visibility& visibility);

}  // namespace shardrun::kernels::tiles
