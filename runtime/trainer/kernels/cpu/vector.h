// fp32 primitives over contiguous memory that the CPU ops are made of, compiled once per instruction set.
//
// This header is internal to kernels/cpu. Each function is a plain loop, compiled for AVX-512, AVX2 and the
// baseline; which one runs is decided at the first use, so one binary serves all nodes. bf16 rows are widened into
// scratch, computed in fp32 and narrowed again: both conversions stay in the first-level cache.
//
// Thread rule: pure functions on the caller's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels::vector {

// What this machine has and oneDNN may use; ONEDNN_MAX_CPU_ISA (AVX512_CORE, AVX2, SSE41, …) lowers both at once,
// which is how the tests reach every level on one machine. Defined where oneDNN is, in gemm.cpp.
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };
InstructionSet instruction_set();

void widen(float* out, const Bf16* in, int64_t count);
void narrow(Bf16* out, const float* in, int64_t count);
// A tile has rows × count elements: dense in fp32, with rows that are `stride` elements apart in bf16.
void widen_rows(float* out, const Bf16* in, int64_t rows, int64_t count, int64_t stride);
void narrow_rows(Bf16* out, const float* in, int64_t rows, int64_t count, int64_t stride);
// Writes the tile `in`, whose rows are `stride` apart, transposed to out (count, out_stride).
void transpose(float* out, int64_t out_stride, const float* in, int64_t rows, int64_t count, int64_t stride);
void transpose(float* out, int64_t out_stride, const Bf16* in, int64_t rows, int64_t count, int64_t stride);
// dp = p · (dp - delta of the row), both (rows, count) with rows that are `stride` apart.
void softmax_gradient(float* dp, const float* p, const float* delta, int64_t rows, int64_t count,
                      int64_t stride);

// Computes the inner products of the rows of a and b (rows, count), which are `stride` apart; kLanes divides count.
void row_products(float* out, const Bf16* a, const Bf16* b, int64_t rows, int64_t count, int64_t stride);

float dot(const float* a, const float* b, int64_t count);
float sum_of_squares(const float* x, int64_t count);
float maximum(const float* x, int64_t count);
// Computes y += a·x.
void add_scaled(float* y, float a, const float* x, int64_t count);
void scale(float* y, float a, int64_t count);
void add(float* y, const float* a, const float* b, int64_t count);
// Computes y = x·a·w.
void scale_by_weights(float* y, const float* x, float a, const float* w, int64_t count);
// Computes y[i] = exp(x[i] - shift); returns the sum of y. The relative error of exp is below 2e-7.
float exp_shifted(float* y, const float* x, float shift, int64_t count);
void swiglu(float* y, const float* gate, const float* up, int64_t count);
void swiglu_gradient(float* dgate, float* dup, const float* dy, const float* gate, const float* up,
                     int64_t count);
// Computes y = (x - mean)·rstd·gamma + beta.
void normalize(float* y, const float* x, float mean, float rstd, const float* gamma, const float* beta,
               int64_t count);
float sum(const float* x, int64_t count);
float sum_of_squared_deviations(const float* x, float mean, int64_t count);
// For one row, with n = (x - mean)·rstd and g = dy·gamma: adds dy·n to dgamma and dy to dbeta; returns the means
// of g and of g·n.
struct LayerNormMeans {
  float g, gn;
};
LayerNormMeans layernorm_gradient_means(float* dgamma, float* dbeta, const float* dy, const float* x,
                                        float mean, float rstd, const float* gamma, int64_t count);
// Computes dx = rstd·(g - means.g - n·means.gn); dx may be dy.
void layernorm_gradient(float* dx, const float* dy, const float* x, float mean, float rstd,
                        const float* gamma, LayerNormMeans means, int64_t count);
void gelu(float* y, const float* x, int64_t count);
// dx may be dy.
void gelu_gradient(float* dx, const float* dy, const float* x, int64_t count);
void rotate(float* low, float* high, const float* cosine, const float* sine, float sign, int64_t count);
void adamw(float* master, float* moment1, float* moment2, const float* gradient, int64_t count,
           const AdamWParameters& parameters);
// Do as kernels::lamb_measure and lamb_apply, for so few elements that fp32 may sum them.
struct Squares {
  float master, update;
};
Squares lamb_measure(const float* master, float* moment1, float* moment2, const float* gradient,
                     int64_t count, const LambParameters& parameters);
void lamb_apply(float* master, const float* moment1, const float* moment2, float rate, int64_t count,
                const LambParameters& parameters);

// Adds a (rows,inner; lda) · b (inner,columns; ldb) to c (rows,columns; leading dimension ldc). It is made for the
// small tiles of attention.
void multiply_add(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb,
                  int64_t rows, int64_t inner, int64_t columns);
// Does as above with a transposed: it is stored as (inner,rows; lda).
void multiply_add_transposed(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb,
                             int64_t rows, int64_t inner, int64_t columns);

// Return rows of T as fp32: a float row is used where it lies, a bf16 row goes through scratch.
inline const float* load(const float* row, float*, int64_t) {
  return row;
}
inline const float* load(const Bf16* row, float* scratch, int64_t count) {
  widen(scratch, row, count);
  return scratch;
}
// Say where to compute a row of results, and put it in its place afterwards.
inline float* target(float* row, float*) {
  return row;
}
inline float* target(Bf16*, float* scratch) {
  return scratch;
}
inline void store(float*, const float*, int64_t) {}
inline void store(Bf16* row, const float* scratch, int64_t count) {
  narrow(row, scratch, count);
}

}  // namespace shardrun::kernels::vector
