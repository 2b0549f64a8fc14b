// The ops of kernels/ops.h on an NVIDIA GPU: the same names, shapes and numerics, with the device first and all
// pointers into its memory. What differs:
//
//   - ops are put on the device's stream in the order of the calls and never wait; kernels/cuda/device.h says how they
//     fail
//   - what an op returns on the CPU, it writes to the device's memory, and what another op needs of that it reads there
//   - matrix products choose their kernels (Device::tune_products); everything else has the same bits on every run,
//     for any order of the GPU's blocks: sums have a fixed order, nothing is added atomically
//   - N = 0 and the like are allowed and write what an empty sum is
//
// Floors are bytes through the GPU's memory, where s = sizeof(T), or operations; no version of an op is faster than
// its floor over the GPU's rate (tests/bench/gpu_kernels_bench.cpp prints the share).
//
// Thread rule: as Device. Limits: hidden sizes up to 24576 in norms; rows up to 2^31 - 1.
// State: never run on a GPU yet; compiled, and tested on an emulated one (tests/emulation).
// Tests: tests/gpu.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/trainer/kernels/cuda/device.h"
#include "runtime/trainer/kernels/fp8.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels::cuda {

// ---- conversions. Floor: 6 bytes for each element.
void fp32_to_bf16(Device& device, std::span<const float> in, std::span<Bf16> out);
void bf16_to_fp32(Device& device, std::span<const Bf16> in, std::span<float> out);
template <typename T>
void from_fp32(Device& device, T* out, const float* in, int64_t count);

// ---- linear layer. Floor: 2·N·C·O operations on the tensor cores (bf16) or in fp32 (never TF32).
template <typename T>
void linear_forward(Device& device, T* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O);
template <typename T>
void linear_forward_fp32(Device& device, float* y, const T* x, const T* w, int64_t N, int64_t C, int64_t O);
template <typename T>
void linear_bias_forward(Device& device, T* y, const T* x, const T* w, const T* bias, int64_t N, int64_t C,
                         int64_t O);
template <typename T>
void linear_bias_forward_fp32(Device& device, float* y, const T* x, const T* w, const T* bias, int64_t N,
                              int64_t C, int64_t O);
template <typename T>
void linear_backward_input(Device& device, T* dx, const T* dy, const T* w, int64_t N, int64_t C, int64_t O,
                           bool accumulate = false);
template <typename T>
void linear_backward_input_fp32(Device& device, float* dx, const T* dy, const T* w, int64_t N, int64_t C,
                                int64_t O);
template <typename T>
void linear_backward_weight(Device& device, float* dw, const T* dy, const T* x, int64_t N, int64_t C,
                            int64_t O, bool accumulate);
// Floor: s·N·O bytes.
template <typename T>
void bias_backward(Device& device, float* dbias, const T* dy, int64_t N, int64_t O, bool accumulate);

// ---- embedding. Floors: 2s·N·C bytes; backward s·N·C + 4·V·C; sum 4s·N·C at most (tables stay in the cache).
template <typename T>
void embedding_forward(Device& device, T* y, const int32_t* tokens, const T* w, int64_t N, int64_t C);
// Tokens are sorted with their rows (stable), so a row of dw is added up in ascending n and has the CPU's bits.
template <typename T>
void embedding_backward(Device& device, float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C,
                        int64_t V, bool accumulate = false);
template <typename T>
void embedding_sum_forward(Device& device, T* y, const int32_t* tokens, const int32_t* positions,
                           const int32_t* segments, const T* word, const T* position, const T* type,
                           int64_t N, int64_t C);
template <typename T>
void embedding_slice_forward(Device& device, float* y, const int32_t* tokens, const T* w, int64_t N,
                             int64_t C, int64_t V, int64_t first);
template <typename T>
void embedding_slice_backward(Device& device, float* dw, const int32_t* tokens, const T* dy, int64_t N,
                              int64_t C, int64_t V, int64_t first, bool accumulate = false);
// Floor: s·C·(M + N) bytes.
template <typename T>
void scatter_rows(Device& device, T* y, const int32_t* rows, const T* x, int64_t M, int64_t N, int64_t C);

// ---- norms. Floors: forward 2s·N·C bytes, backward 4s·N·C (dx is read too); LayerNorm backward 3s·N·C; a residual
// adds 2s·N·C.
template <typename T>
void rmsnorm_forward(Device& device, T* y, float* rrms, const T* x, const T* w, int64_t N, int64_t C,
                     float epsilon);
// Does the same after x += residual in place, as layernorm_forward has it: one pass instead of two.
template <typename T>
void rmsnorm_residual_forward(Device& device, T* y, float* rrms, T* x, const T* residual, const T* w,
                              int64_t N, int64_t C, float epsilon);
template <typename T>
void rmsnorm_backward(Device& device, T* dx, float* dw, const T* dy, const T* x, const T* w,
                      const float* rrms, int64_t N, int64_t C);
template <typename T>
void layernorm_forward(Device& device, T* y, float* mean, float* rstd, T* x, const T* residual,
                       const T* gamma, const T* beta, int64_t N, int64_t C, float epsilon);
template <typename T>
void layernorm_backward(Device& device, T* dx, float* dgamma, float* dbeta, const T* dy, const T* x,
                        const T* gamma, const float* mean, const float* rstd, int64_t N, int64_t C);

// ---- rotary position embedding. Floor: 2s bytes for each element that is turned.
void rope_table(Device& device, float* table, int64_t T, int64_t D, double theta);
template <typename Type>
void rope(Device& device, Type* x, const float* table, int64_t B, int64_t T, int64_t heads, int64_t D,
          int64_t stride, bool inverse);

// ---- attention. Floor: 4·D operations forward and 10·D backward for each head and visible pair of query and key.
// Bf16 with D of 64 or 128 runs on the tensor cores, where backward takes 14·D: scores are made twice so that no
// gradient is added atomically. Any other D up to 256, and fp32, runs in plain fp32 and is not meant for training.
template <typename Type>
void attention_forward(Device& device, Type* out, float* lse, const Type* qkv, const AttentionShape& shape,
                       const Visibility& visibility = {});
template <typename Type>
void attention_backward(Device& device, Type* dqkv, const Type* dout, const Type* out, const Type* qkv,
                        const float* lse, const AttentionShape& shape, const Visibility& visibility = {});

// ---- elementwise. Floors in bytes for each result: SwiGLU 3s forward, 5s backward; GELU and tanh 2s and 3s; add 3s.
template <typename T>
void swiglu_forward(Device& device, T* y, const T* gate_up, int64_t N, int64_t F);
template <typename T>
void swiglu_backward(Device& device, T* dgate_up, const T* dy, const T* gate_up, int64_t N, int64_t F);
template <typename T>
void gelu_forward(Device& device, T* y, const T* x, int64_t count);
template <typename T>
void gelu_backward(Device& device, T* dx, const T* dy, const T* x, int64_t count);
template <typename T>
void tanh_forward(Device& device, T* y, const T* x, int64_t count);
template <typename T>
void tanh_backward(Device& device, T* dx, const T* dy, const T* y, int64_t count);
template <typename T>
void add(Device& device, T* y, const T* a, const T* b, int64_t count);

// ---- classifier. Floor: 4·N·V + s·N·V bytes; the second read of a row comes from the cache.
// loss_sum (1) lies in the device's memory: the losses' sum in fp64, in a fixed order that is not the CPU's.
template <typename T>
void cross_entropy(Device& device, double* loss_sum, T* dlogits, const float* logits, const int32_t* targets,
                   int64_t N, int64_t V, float loss_scale);
// Does the same with logits in bf16, which dlogits may be: 4·N·V bytes.
void cross_entropy_bf16(Device& device, double* loss_sum, Bf16* dlogits, const Bf16* logits,
                        const int32_t* targets, int64_t N, int64_t V, float loss_scale);
void classifier_slice_stats(Device& device, float* stats, const float* logits, const int32_t* targets,
                            int64_t N, int64_t V, int64_t first);
template <typename T>
void cross_entropy_slice(Device& device, double* loss_sum, T* dlogits, const float* logits,
                         const float* gathered, const int32_t* targets, int64_t N, int64_t V, int64_t first,
                         int ranks, float loss_scale);

// ---- optimizer. Floors in bytes for each element: AdamW 28, or 30 with a bf16 copy; LAMB 24 to measure and 16 to
// apply; a sum of squares 4.
enum class Rounding { kNearest, kStochastic };  // kernels/cuda/rounding.h
// Where the new master weights go in bf16 too. Element i is number `first_element` + i of its tensor, so that the
// bits do not depend on how a tensor is cut; `key` is another one for every step.
struct NarrowCopy {
  Bf16* values = nullptr;  // null: no copy is wanted
  Rounding rounding = Rounding::kNearest;
  uint64_t key = 0, first_element = 0;
};
// `factor`, which lies in the device's memory, multiplies the gradient besides gradient_scale; null: 1.
void adamw_step(Device& device, std::span<float> master, std::span<float> moment1, std::span<float> moment2,
                std::span<const float> gradient, const AdamWParameters& parameters,
                const float* factor = nullptr, const NarrowCopy& copy = {});
// *squares lies in the device's memory.
void lamb_measure(Device& device, LambSquares* squares, std::span<const float> master,
                  std::span<float> moment1, std::span<float> moment2, std::span<const float> gradient,
                  const LambParameters& parameters);
// *rate lies in the device's memory.
void lamb_apply(Device& device, std::span<float> master, std::span<const float> moment1,
                std::span<const float> moment2, const float* rate, const LambParameters& parameters);
// Adds y += x for a few values in fp64.
void accumulate(Device& device, double* y, const double* x, int64_t count);
// Computes *sum = Σ values² in fp64, for the gradient's norm; *sum lies in the device's memory.
void sum_of_squares(Device& device, double* sum, std::span<const float> values);

// ---- linear layers in fp8: kernels/fp8.h has the contracts. Floor of quantizing: (s + 2) bytes for each element,
// and s more where the present values decide the scale; of products: 2·N·C·O operations on the tensor cores at
// fp8's rate. Sizes that are no multiples of 16 are multiplied by a plain loop, slowly (Device::plain_products).
template <typename T>
void fp8_quantize(Device& device, const Fp8Matrix& out, Fp8Scaling* scaling, const T* in, int64_t rows,
                  int64_t columns, Fp8Scale scale = Fp8Scale::kDelayed);
// Out is Bf16 or float.
template <typename Out>
void fp8_linear_forward(Device& device, Out* y, const Fp8Matrix& x, const Fp8Matrix& w, int64_t N, int64_t C,
                        int64_t O);
template <typename Out>
void fp8_linear_backward_input(Device& device, Out* dx, const Fp8Matrix& dy, const Fp8Matrix& w, int64_t N,
                               int64_t C, int64_t O, bool accumulate = false);
void fp8_linear_backward_weight(Device& device, float* dw, const Fp8Matrix& dy, const Fp8Matrix& x, int64_t N,
                                int64_t C, int64_t O, bool accumulate);

}  // namespace shardrun::kernels::cuda
