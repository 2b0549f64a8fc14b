// Ops: the ops of kernels/ops.h and kernels/sliced_ops.h on one type, of one backend. Their contracts are there;
// pointers point into the backend's memory (kernels/backend.h).
//
// Thread rule: as the backend's.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels {

template <typename T>
class Ops {
 public:
  virtual ~Ops() = default;

  // ---- linear layer
  virtual void linear_forward(T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O) const = 0;
  virtual void linear_forward_fp32(float* y, const T* x, const T* w, int64_t N, int64_t C,
                                   int64_t O) const = 0;
  virtual void linear_bias_forward(T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                                   int64_t O) const = 0;
  virtual void linear_bias_forward_fp32(float* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                                        int64_t O) const = 0;
  virtual void linear_backward_input(T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O,
                                     bool accumulate = false) const = 0;
  virtual void linear_backward_input_fp32(float* dx, const T* dy, const T* w, int64_t N, int64_t C,
                                          int64_t O) const = 0;
  virtual void linear_backward_weight(float* dw, const T* dy, const T* x, int64_t N, int64_t C, int64_t O,
                                      bool accumulate) const = 0;
  virtual void bias_backward(float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate) const = 0;

  // ---- embedding
  virtual void embedding_forward(T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C) const = 0;
  virtual void embedding_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C,
                                  int64_t V, bool accumulate = false) const = 0;
  virtual void embedding_sum_forward(T* y, const int32_t* tokens, const int32_t* positions,
                                     const int32_t* segments, const T* word, const T* position, const T* type,
                                     int64_t N, int64_t C) const = 0;
  virtual void embedding_slice_forward(float* y, const int32_t* tokens, const T* w, int64_t N, int64_t C,
                                       int64_t V, int64_t first) const = 0;
  virtual void embedding_slice_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C,
                                        int64_t V, int64_t first, bool accumulate = false) const = 0;
  virtual void scatter_rows(T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C) const = 0;

  // ---- norms
  virtual void rmsnorm_forward(T* y, float* rrms, const T* x, const T* w, int64_t N, int64_t C,
                               float epsilon) const = 0;
  // Adds residual to x in place, then does as above: the bits are those of add() and rmsnorm_forward().
  virtual void rmsnorm_residual_forward(T* y, float* rrms, T* x, const T* residual, const T* w, int64_t N,
                                        int64_t C, float epsilon) const = 0;
  virtual void rmsnorm_backward(T* dx, float* dw, const T* dy, const T* x, const T* w, const float* rrms,
                                int64_t N, int64_t C) const = 0;
  virtual void layernorm_forward(T* y, float* mean, float* rstd, T* x, const T* residual, const T* gamma,
                                 const T* beta, int64_t N, int64_t C, float epsilon) const = 0;
  virtual void layernorm_backward(T* dx, float* dgamma, float* dbeta, const T* dy, const T* x, const T* gamma,
                                  const float* mean, const float* rstd, int64_t N, int64_t C) const = 0;

  // ---- attention
  virtual void rope(T* x, const float* table, int64_t B, int64_t length, int64_t heads, int64_t D,
                    int64_t stride, bool inverse) const = 0;
  virtual void attention_forward(T* out, float* lse, const T* qkv, const AttentionShape& shape,
                                 const Visibility& visibility) const = 0;
  virtual void attention_backward(T* dqkv, const T* dout, const T* out, const T* qkv, const float* lse,
                                  const AttentionShape& shape, const Visibility& visibility) const = 0;

  // ---- elementwise
  virtual void swiglu_forward(T* y, const T* gate_up, int64_t N, int64_t F) const = 0;
  virtual void swiglu_backward(T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F) const = 0;
  virtual void gelu_forward(T* y, const T* x, int64_t count) const = 0;
  virtual void gelu_backward(T* dx, const T* dy, const T* x, int64_t count) const = 0;
  virtual void tanh_forward(T* y, const T* x, int64_t count) const = 0;
  virtual void tanh_backward(T* dx, const T* dy, const T* y, int64_t count) const = 0;
  virtual void add(T* y, const T* a, const T* b, int64_t count) const = 0;
  virtual void from_fp32(T* out, const float* in, int64_t count) const = 0;

  // ---- classifier: *loss_sum is what the function of ops.h returns
  virtual void cross_entropy(double* loss_sum, T* dlogits, const float* logits, const int32_t* targets,
                             int64_t N, int64_t V, float loss_scale) const = 0;
  virtual void cross_entropy_slice(double* loss_sum, T* dlogits, const float* logits, const float* gathered,
                                   const int32_t* targets, int64_t N, int64_t V, int64_t first, int ranks,
                                   float loss_scale) const = 0;
};

}  // namespace shardrun::kernels
