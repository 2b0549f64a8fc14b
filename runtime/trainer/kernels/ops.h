// The ops of the trainer. Each has one prototype, which carries its contract, in a class of its kind; a backend defines
// the class where its loops are:
//
//   kernels/cpu/   oneDNN for matrix products, vectorised loops for the rest
//   kernels/cuda/  NVIDIA GPUs; cuda/ops.h says what differs there
//
// T is float or Bf16, the compute dtype of activations and gathered parameters; sums, norms, softmax and losses run
// in fp32 or wider. All matrices are row-major and dense. Pointers lie in the backend's memory (kernels/backend.h), name
// `count` elements and must not overlap unless an op says so. Wrong shapes are a bug (CHECK); there are no other errors.
//
// Legend: N rows (tokens), C hidden size, O outputs, F feed-forward size, V vocabulary, B sequences, T their
// length, H query heads, K key/value heads, D head size. In code T is the type, so there the length has its own name.
//
// Thread rule: as the backend's. A CPU's ops use the caller's OpenMP setting; for one number of threads and one machine the bits repeat.
// Tests: tests/unit/kernels, tests/gpu, both against the plain loops of tests/support/reference_ops.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/plan/model/ops.h"
#include "runtime/trainer/kernels/attention.h"
#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels {

// Linear layers: y = x·wᵀ. Products accumulate in fp32.
template <typename T>
class ProductOps {
 public:
  virtual ~ProductOps() = default;

  // Computes y (N,O) from x (N,C) and w (O,C).
  virtual void linear_forward(T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const = 0;
  // Does the same with fp32 results, for logits.
  virtual void linear_forward_fp32(float* y, const T* x, const T* w, int64_t N, int64_t C,
                                   int64_t O) const = 0;
  // Do the same with bias (O) added to every row before it is rounded.
  virtual void linear_bias_forward(T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                                   int64_t O) const = 0;
  virtual void linear_bias_forward_fp32(float* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                                        int64_t O) const = 0;
  // Computes dx (N,C) = dy (N,O) · w (O,C), or += when `accumulate`.
  virtual void linear_backward_input(T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O,
                                     bool accumulate = false) const = 0;
  // Does the same with fp32 results.
  virtual void linear_backward_input_fp32(float* dx, const T* dy, const T* w, int64_t N, int64_t C,
                                          int64_t O) const = 0;
  // Computes dw (O,C) fp32 = dyᵀ · x, or += when `accumulate`.
  virtual void linear_backward_weight(float* dw, const T* dy, const T* x, int64_t N, int64_t C, int64_t O,
                                      bool accumulate) const = 0;
  // Computes dbias (O) fp32 = the sum of dy's rows, or += when `accumulate`. Same bits for any number of threads.
  virtual void bias_backward(float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate) const = 0;
};

// Rows that tokens choose. An op on a slice serves tensor parallelism: the vocabulary is cut into equal slices, one for
// each rank; V is then the length of a slice and `first` its first token.
template <typename T>
class EmbeddingOps {
 public:
  virtual ~EmbeddingOps() = default;

  // Row n of y (N,C) becomes row tokens[n] of w (V,C).
  virtual void forward(T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C) const = 0;
  // Computes dw (V,C) fp32 = rows of dy (N,C) summed by token in ascending n, or += when `accumulate`.
  virtual void backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                        bool accumulate = false) const = 0;
  // Row n of y (N,C) becomes row tokens[n] of word, plus row positions[n] of position, plus row segments[n] of type.
  virtual void sum_forward(T* y, const int32_t* tokens, const int32_t* positions, const int32_t* segments,
                           const T* word, const T* position, const T* type, int64_t N, int64_t C) const = 0;
  // Writes y (N,C) fp32: row n is row tokens[n] - first of w (V,C), or zeros for a token of another slice.
  virtual void slice_forward(float* y, const int32_t* tokens, const T* w, int64_t N, int64_t C, int64_t V,
                             int64_t first) const = 0;
  // Does as backward, for a slice: tokens of other slices are skipped.
  virtual void slice_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                              int64_t first, bool accumulate = false) const = 0;
  // Row rows[n] of y (N,C) becomes x's row n, of which there are M; every other row becomes zero. Rows are distinct.
  virtual void scatter_rows(T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C) const = 0;
};

template <typename T>
class NormOps {
 public:
  virtual ~NormOps() = default;

  // RMSNorm (Zhang & Sennrich 2019, with epsilon inside the root): y = x / sqrt(mean(x²)+epsilon) · w.
  // y, x (N,C); w (C); rrms (N) fp32 is kept for backward.
  virtual void rmsnorm_forward(T* y, float* rrms, const T* x, const T* w, int64_t N, int64_t C,
                               float epsilon) const = 0;
  // Adds residual to x in place, then does the same: the bits are those of PointwiseOps::add and rmsnorm_forward.
  virtual void rmsnorm_residual_forward(T* y, float* rrms, T* x, const T* residual, const T* w, int64_t N,
                                        int64_t C, float epsilon) const = 0;
  // Adds the gradient through the norm to dx (N,C), which holds the residual's gradient before. Overwrites dw (C) fp32, summed
  // over rows in a fixed order.
  virtual void rmsnorm_backward(T* dx, float* dw, const T* dy, const T* x, const T* w, const float* rrms,
                                int64_t N, int64_t C) const = 0;
  // LayerNorm (Ba, Kiros & Hinton 2016): y = (x - mean) · rstd · gamma + beta with rstd = 1/sqrt(variance + epsilon),
  // a row at a time. x (N,C) gets residual (N,C) added first, in place, unless that is null. gamma, beta (C);
  // mean, rstd (N) fp32 are kept for backward.
  virtual void layernorm_forward(T* y, float* mean, float* rstd, T* x, const T* residual, const T* gamma,
                                 const T* beta, int64_t N, int64_t C, float epsilon) const = 0;
  // Overwrites dx (N,C), which may be dy, and dgamma, dbeta (C) fp32. x is as forward left it. Same bits for any number of threads.
  virtual void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                                  const float* mean, const float* rstd, int64_t N, int64_t C) const = 0;
  // RMSNorm of every query head and every key head by itself, in place in qkv, as AttentionOps has it. w (2,D): the weights
  // of queries, then those of keys. What was there goes to heads (N,(H+K)·D), 1/rms to rrms (N,H+K), for backward.
  virtual void head_norms_forward(T* qkv, T* heads, float* rrms, const T* w, const AttentionShape& shape,
                                  float epsilon) const = 0;
  // Turns the gradient in dqkv into that of what was there, in place. Overwrites dw (2,D) fp32. Same bits for any number of threads.
  virtual void head_norms_backward(T* dqkv, float* dw, const T* heads, const T* w, const float* rrms,
                                   const AttentionShape& shape) const = 0;
};

// Ops that treat every element by itself.
template <typename T>
class PointwiseOps {
 public:
  virtual ~PointwiseOps() = default;

  // SwiGLU: silu(gate) · up (Shazeer 2020). Computes y (N,F) from gate_up (N,2F), whose rows hold the gate's F values,
  // then the up projection's.
  virtual void swiglu_forward(T* y, const T* gate_up, int64_t N, int64_t F) const = 0;
  virtual void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F) const = 0;
  // GELU, exact: x · Φ(x) (Hendrycks & Gimpel 2016); Φ with an absolute error below 3e-7.
  virtual void gelu_forward(T* y, const T* x, int64_t count) const = 0;
  // dx may be dy.
  virtual void gelu_backward(T* dx, const T* dy, const T* x, int64_t count) const = 0;
  // tanh, for a few values (BERT's pooler). y may be x; y is what backward needs; dx may be dy.
  virtual void tanh_forward(T* y, const T* x, int64_t count) const = 0;
  virtual void tanh_backward(T* dx, const T* dy, const T* y, int64_t count) const = 0;
  // Computes y = a + b. y may be a or b.
  virtual void add(T* y, const T* a, const T* b, int64_t count) const = 0;
  // Adds scale · x (N,C) to the first C columns of y, whose rows are `stride` apart: one of several results of a product.
  virtual void add_to_columns(T* y, const T* x, float scale, int64_t N, int64_t C, int64_t stride) const = 0;
  // Computes y (N,C) = scale · the first C columns of x, whose rows are `stride` apart.
  virtual void take_columns(T* y, const T* x, float scale, int64_t N, int64_t C, int64_t stride) const = 0;
  // Writes out = in in the compute dtype.
  virtual void from_fp32(T* out, const float* in, int64_t count) const = 0;
};

// Softmax and cross-entropy of logits (N,V) fp32 against targets (N), of which -1 means none.
template <typename T>
class ClassifierOps {
 public:
  virtual ~ClassifierOps() = default;

  // Writes the sum of the losses in nats (rows added in a fixed order) to *loss_sum, and their gradient times loss_scale
  // to dlogits (N,V). With T = float, dlogits may be logits.
  virtual void cross_entropy(double* loss_sum, T* dlogits, const float* logits, const int32_t* targets,
                             int64_t N, int64_t V, float loss_scale) const = 0;
  // Of a slice of the vocabulary (EmbeddingOps), writes what the other ranks need to know the softmax of the whole: for
  // each row the largest logit, the sum of exp(logit - largest), and the target's logit, or 0 when it lies in another
  // slice. stats has the shape (N,kSliceStats).
  virtual void slice_stats(float* stats, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                           int64_t first) const = 0;
  // Does as cross_entropy, for a slice: gathered (ranks,N,kSliceStats) are the stats of all ranks in rank order, so
  // every rank gets the same bits. dlogits (N,V).
  virtual void cross_entropy_slice(double* loss_sum, T* dlogits, const float* logits, const float* gathered,
                                   const int32_t* targets, int64_t N, int64_t V, int64_t first, int ranks,
                                   float loss_scale) const = 0;
};

struct AdamWParameters {
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  float gradient_scale;                      // multiplies the gradient first (clipping)
  float bias_correction1, bias_correction2;  // 1 - beta^step
};
struct LambParameters {
  float beta1, beta2, epsilon, weight_decay;
  float gradient_scale;                      // multiplies the gradient first (clipping)
  float bias_correction1, bias_correction2;  // 1 - beta^step
};
struct LambSquares {
  double master, update;
};

// What ends a step, on masters, moments and gradients in fp32, and on sums in fp64.
class OptimizerOps {
 public:
  virtual ~OptimizerOps() = default;

  // Rounds to bf16, as raw bits.
  virtual void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out) const = 0;
  virtual void bf16_to_fp32(std::span<const Bf16> in, std::span<float> out) const = 0;
  // Adds y += x for a few values.
  virtual void accumulate(double* y, const double* x, int64_t count) const = 0;
  // Computes *sum = Σ values², in a fixed order.
  virtual void sum_of_squares(double* sum, std::span<const float> values) const = 0;
  // AdamW with decoupled decay (Loshchilov & Hutter 2019).
  virtual void adamw_step(std::span<float> master, std::span<float> moment1, std::span<float> moment2,
                          std::span<const float> gradient, const AdamWParameters& parameters) const = 0;
  // LAMB (You et al. 2020) for one tensor or a piece of one: updates the moments and writes Σw² and Σu² to *squares,
  // where u = m̂/(sqrt(v̂) + epsilon) + weight_decay·w. Same bits for any number of threads.
  virtual void lamb_measure(LambSquares* squares, std::span<const float> master, std::span<float> moment1,
                            std::span<float> moment2, std::span<const float> gradient,
                            const LambParameters& parameters) const = 0;
  // Computes w -= *rate·u, from the updated moments. *rate lies in the backend's memory, too.
  virtual void lamb_apply(std::span<float> master, std::span<const float> moment1,
                          std::span<const float> moment2, const float* rate,
                          const LambParameters& parameters) const = 0;
};

// A backend's ops on T; they live as long as it.
template <typename T>
struct Ops {
  const ProductOps<T>& products;
  const EmbeddingOps<T>& embedding;
  const NormOps<T>& norms;
  const AttentionOps<T>& attention;
  const PointwiseOps<T>& pointwise;
  const ClassifierOps<T>& classifier;
};

// Convert in the host's memory, on its CPUs.
void fp32_to_bf16(std::span<const float> in, std::span<Bf16> out);
void fp32_to_bf16(std::span<const float> in, std::span<uint16_t> out);  // the same, as raw bits
void bf16_to_fp32(std::span<const Bf16> in, std::span<float> out);

}  // namespace shardrun::kernels
