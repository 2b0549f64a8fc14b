// Attention on the tensor cores, for attention.cu: bf16, D of 64 or 128, 16-byte aligned pointers.
//
// Thread rule: as Device. The op of the caller makes the launches.
#pragma once

#include "runtime/trainer/kernels/cuda/launch.cuh"

namespace shardrun::kernels::cuda {

bool tensor_attention_takes(const AttentionShape& shape);
void tensor_attention_forward(OpScope& op, Bf16* out, float* lse, const Bf16* qkv,
                              const AttentionShape& shape, const Visibility& visibility);
// delta (B,H,T) is Σ dout·out of each token and head.
void tensor_attention_backward(OpScope& op, Bf16* dqkv, const Bf16* dout, const Bf16* qkv, const float* lse,
                               const float* delta, const AttentionShape& shape, const Visibility& visibility);

}  // namespace shardrun::kernels::cuda
