// What only the decoding of one token at a time needs, on a CPU: products of a matrix and a vector, which read each weight once,
// and attention over kept keys and values. Everything else that it needs is in ops.h.
//
// Weights are float, or Bf16 that is widened as it is read; vectors and sums are fp32.
// Thread rule: thread-safe; the OpenMP threads of the calling thread are used. The bits do not depend on their number.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels {

// Computes y (O) = w (O,C) · x (C).
void multiply(float* y, const float* w, const float* x, int64_t O, int64_t C);
void multiply(float* y, const Bf16* w, const float* x, int64_t O, int64_t C);

// Kept keys and values of one layer: of each of K heads a row of D for every position, `capacity` positions apart.
struct KeptHeads {
  const float *keys = nullptr, *values = nullptr;  // (K,capacity,D)
  int64_t H = 0, K = 0, D = 0, capacity = 0;
};
// Computes out (H·D): of each query head in q (H·D) the softmax of its scores with the keys of positions [begin, end), times
// their values. Scores are scaled with 1/sqrt(D). `scores`: working memory of (H,end - begin).
void attend(float* out, const float* q, const KeptHeads& kept, int64_t begin, int64_t end, float* scores);

}  // namespace shardrun::kernels
