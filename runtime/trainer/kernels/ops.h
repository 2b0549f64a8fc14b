// The ops of the trainer: one documented prototype per op, and one folder per backend that defines it.
//
//   kernels/cpu/        what runs: oneDNN for matrix products, vectorised loops for the rest
//   kernels/reference/  the same contracts in plain loops, written to be checked by eye; used by tests
//
// T is float or Bf16, the compute dtype of activations and gathered parameters; sums, norms, softmax and losses run
// in fp32 or wider. All matrices are row-major and dense. Pointers name `count` elements and must not overlap
// unless an op says so. Wrong shapes are a bug (CHECK); there are no other errors.
//
// Legend: N rows (tokens), C hidden size, O outputs, F feed-forward size, V vocabulary, B sequences, T their
// length, H query heads, K key/value heads, D head size.
//
// Thread rule: ops use the calling thread's OpenMP setting; for one number of threads and one machine the bits repeat.
// Tests: tests/unit/kernels.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels {

// ---- conversions
void fp32_to_bf16(std::span<const float> in, std::span<Bf16> out);
void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out);  // the same, as raw bits
void bf16_to_fp32(std::span<const Bf16> in, std::span<float> out);

// ---- linear layer: y = x·wᵀ
// Computes y (N,O) from x (N,C) and w (O,C). Products accumulate in fp32.
template <typename T>
void linear_forward(T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O);
// Does the same with fp32 results, for logits.
template <typename T>
void linear_forward_fp32(float* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O);
// Do the same with bias (O) added to every row before it is rounded.
template <typename T>
void linear_bias_forward(T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C, int64_t O);
template <typename T>
void linear_bias_forward_fp32(float* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                              int64_t O);
// Computes dx (N,C) = dy (N,O) · w (O,C), or += when `accumulate`.
template <typename T>
void linear_backward_input(T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O,
                           bool accumulate = false);
// Does the same with fp32 results.
template <typename T>
void linear_backward_input_fp32(float* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O);
// Computes dw (O,C) fp32 = dyᵀ · x, or += when `accumulate`.
template <typename T>
void linear_backward_weight(float* dw, const T* dy, const T* x, int64_t N, int64_t C, int64_t O,
                            bool accumulate);
// Computes dbias (O) fp32 = the sum of dy's rows, or += when `accumulate`. Same bits for any number of threads.
template <typename T>
void bias_backward(float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate);

// ---- embedding
// Row n of y (N,C) becomes row tokens[n] of w (V,C).
template <typename T>
void embedding_forward(T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C);
// Computes dw (V,C) fp32 = rows of dy (N,C) summed by token in ascending n, or += when `accumulate`.
template <typename T>
void embedding_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                        bool accumulate = false);
// Row n of y (N,C) becomes row tokens[n] of word, plus row positions[n] of position, plus row segments[n] of type
// (BERT's input).
template <typename T>
void embedding_sum_forward(T* y, const int32_t* tokens, const int32_t* positions, const int32_t* segments,
                           const T* word, const T* position, const T* type, int64_t N, int64_t C);
// Row rows[n] of y (N,C) becomes x's row n, of which there are M; every other row becomes zero. Rows are distinct.
template <typename T>
void scatter_rows(T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C);

// ---- RMSNorm (Zhang & Sennrich 2019, with epsilon inside the root)
// Computes y = x / sqrt(mean(x²)+epsilon) · w. y, x (N,C); w (C); rrms (N) fp32 is kept for backward.
template <typename T>
void rmsnorm_forward(T* y, float* rrms, const T* x, const T* w, int64_t N, int64_t C, float epsilon);
// Adds the gradient through the norm to dx (N,C), which holds the residual's gradient before. Overwrites dw (C)
// fp32, summed over rows in a fixed order.
template <typename T>
void rmsnorm_backward(T* dx, float* dw, const T* dy, const T* x, const T* w, const float* rrms, int64_t N,
                      int64_t C);

// ---- LayerNorm (Ba, Kiros & Hinton 2016)
// Computes y = (x - mean) · rstd · gamma + beta with rstd = 1/sqrt(variance + epsilon), a row at a time. x
// (N,C) gets residual (N,C) added first, in place, unless that is null. gamma, beta (C); mean, rstd (N) fp32
// are kept for backward.
template <typename T>
void layernorm_forward(T* y, float* mean, float* rstd, T* x, const T* residual, const T* gamma, const T* beta,
                       int64_t N, int64_t C, float epsilon);
// Overwrites dx (N,C), which may be dy, and dgamma, dbeta (C) fp32. x is as forward left it. Same bits for any
// number of threads.
template <typename T>
void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                        const float* mean, const float* rstd, int64_t N, int64_t C);

// ---- rotary position embedding, half-rotation layout (Su et al. 2021, as in LlamaForCausalLM)
// Fills table (T, D): the cos of D/2 angles, then their sin. angle(t, i) = t · theta^(-2i/D).
void rope_table(float* table, int64_t T, int64_t D, double theta);
// Rotates `heads` heads of D in place at the start of each row of x (B·T, stride). `inverse` is for backward.
template <typename Type>
void rope(Type* x, const float* table, int64_t B, int64_t T, int64_t heads, int64_t D, int64_t stride,
          bool inverse);

// ---- attention with grouped key/value heads, tiled (Dao 2023): no T×T matrix ever exists
struct AttentionShape {
  int64_t B, T, H, K, D;
  int64_t qkv_stride() const { return (H + 2 * K) * D; }
};
// Token t of a sequence sees the tokens u of its own document that are no padding, and with `causal` only u ≤ t.
// A token that sees nothing gets zeros. Tiles that nobody sees cost nothing.
struct Visibility {
  bool causal = true;
  const int32_t* begins = nullptr;  // (B,T): the column at which each token's document begins; null: 0
  // (B): how many tokens at the start of each sequence are no padding; null: T.
  const int32_t* lengths = nullptr;
};
// Computes out (B·T, H·D) from qkv (B·T, (H+2K)·D), which holds query heads, key heads and value heads of each
// token, and lse (B,H,T) fp32, the log of the softmax's denominator, which is kept for backward. Scores are scaled
// with 1/sqrt(D).
template <typename Type>
void attention_forward(Type* out, float* lse, const Type* qkv, const AttentionShape& shape,
                       const Visibility& visibility = {});
// Overwrites dqkv (B·T, (H+2K)·D).
template <typename Type>
void attention_backward(Type* dqkv, const Type* dout, const Type* out, const Type* qkv, const float* lse,
                        const AttentionShape& shape, const Visibility& visibility = {});

// ---- SwiGLU: silu(gate) · up (Shazeer 2020)
// Computes y (N,F) from gate_up (N,2F), whose rows hold the gate's F values, then the up projection's.
template <typename T>
void swiglu_forward(T* y, const T* gate_up, int64_t N, int64_t F);
template <typename T>
void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F);

// ---- GELU, exact: x · Φ(x) (Hendrycks & Gimpel 2016); Φ with an absolute error below 3e-7
template <typename T>
void gelu_forward(T* y, const T* x, int64_t count);
// dx may be dy.
template <typename T>
void gelu_backward(T* dx, const T* dy, const T* x, int64_t count);

// ---- tanh, for a few values (BERT's pooler). y may be x; y is what backward needs; dx may be dy.
template <typename T>
void tanh_forward(T* y, const T* x, int64_t count);
template <typename T>
void tanh_backward(T* dx, const T* dy, const T* y, int64_t count);

// ---- residual
// Computes y = a + b, `count` elements. y may be a or b.
template <typename T>
void add(T* y, const T* a, const T* b, int64_t count);

// ---- classifier
// Takes softmax and cross-entropy of logits (N,V) fp32 against targets (N), of which -1 means none. Returns the sum
// of the losses in nats (rows added in ascending order) and writes their gradient times loss_scale to dlogits
// (N,V). With T = float, dlogits may be logits.
template <typename T>
double cross_entropy(T* dlogits, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                     float loss_scale);

// ---- optimizer
// AdamW with decoupled decay (Loshchilov & Hutter 2019), fp32 throughout.
struct AdamWParameters {
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  float gradient_scale;                      // multiplies the gradient first (clipping)
  float bias_correction1, bias_correction2;  // 1 - beta^step
};
void adamw_step(std::span<float> master, std::span<float> moment1, std::span<float> moment2,
                std::span<const float> gradient, const AdamWParameters& parameters);

// LAMB (You et al. 2020) for one tensor or a piece of one, in fp32 with sums in fp64. Its update is
// u = m̂/(sqrt(v̂) + epsilon) + weight_decay·w.
struct LambParameters {
  float beta1, beta2, epsilon, weight_decay;
  float gradient_scale;                      // multiplies the gradient first (clipping)
  float bias_correction1, bias_correction2;  // 1 - beta^step
};
struct LambSquares {
  double master, update;
};
// Updates the moments; returns Σw² and Σu². Same bits for any number of threads.
LambSquares lamb_measure(std::span<const float> master, std::span<float> moment1, std::span<float> moment2,
                         std::span<const float> gradient, const LambParameters& parameters);
// Computes w -= rate·u, from the updated moments.
void lamb_apply(std::span<float> master, std::span<const float> moment1, std::span<const float> moment2,
                float rate, const LambParameters& parameters);

}  // namespace shardrun::kernels
