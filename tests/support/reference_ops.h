// The contracts of kernels/ops.h in plain loops over fp32 with fp64 sums: what the fast ops are tested against.
//
// The code is written to be checked by eye; the trainer never calls it.
//
// Thread rule: pure functions on the caller's memory.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels::reference {

void linear_forward(float* y, const float* x, const float* w, int64_t N, int64_t C, int64_t O);
void linear_backward_input(float* dx, const float* dy, const float* w, int64_t N, int64_t C, int64_t O);
void linear_backward_weight(float* dw, const float* dy, const float* x, int64_t N, int64_t C, int64_t O);
void rmsnorm_forward(float* y, const float* x, const float* w, int64_t N, int64_t C, float epsilon);
// Adds to dx, as kernels::rmsnorm_backward does.
void rmsnorm_backward(float* dx, float* dw, const float* dy, const float* x, const float* w, int64_t N,
                      int64_t C, float epsilon);
void attention_forward(float* out, const float* qkv, const AttentionShape& shape,
                       const Visibility& visibility = {});
void attention_backward(float* dqkv, const float* dout, const float* qkv, const AttentionShape& shape,
                        const Visibility& visibility = {});
void bias_backward(float* dbias, const float* dy, int64_t N, int64_t O);
void layernorm_forward(float* y, const float* x, const float* gamma, const float* beta, int64_t N, int64_t C,
                       float epsilon);
void layernorm_backward(float* dx, float* dgamma, float* dbeta, const float* dy, const float* x,
                        const float* gamma, int64_t N, int64_t C, float epsilon);
void gelu_forward(float* y, const float* x, int64_t count);
void gelu_backward(float* dx, const float* dy, const float* x, int64_t count);
void swiglu_forward(float* y, const float* gate_up, int64_t N, int64_t F);
void swiglu_backward(float* dgate_up, const float* dy, const float* gate_up, int64_t N, int64_t F);
double cross_entropy(float* dlogits, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                     float loss_scale);
void adamw_step(float* master, float* moment1, float* moment2, const float* gradient, int64_t count,
                const AdamWParameters& parameters);

}  // namespace shardrun::kernels::reference
