// What only a mixture of experts needs, on a CPU: the choice of experts, and rows that move to them and back. Its matrix products
// are those of ops.h.
//
// They are functions and not ops, because nothing but a CPU has experts yet. T is float or Bf16; sums are fp32.
// Legend: N tokens, E experts, k that a token chooses; an assignment is a token with one of its choices, number n·k + j.
// Source: Shazeer et al. 2017; numerics follow MixtralForCausalLM and Qwen3MoeForCausalLM of transformers.
// Thread rule: thread-safe; the OpenMP threads of the calling thread are used. The bits do not depend on their number.
// Tests: tests/unit/kernels/experts_test.cpp.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels {

struct RouterShape {
  int64_t N = 0, E = 0, k = 0;
  bool normalize = true;  // the weights of a token's choices add up to 1
};

// Turns logits (N,E) into probabilities, in place. Writes to chosen (N,k) the most probable experts, the lower number first where
// two are as probable, and to weights (N,k) theirs.
void route(float* logits, int32_t* chosen, float* weights, const RouterShape& shape);

// What the balance of experts adds to the gradient: of each expert's probability, for the tokens of the sequences that count.
struct BalanceGradient {
  const float* of_expert = nullptr;  // (E); null: nothing is added
  const uint8_t* counts = nullptr;   // by sequence
  int64_t sequence_length = 1;
};
// Computes the logits' gradient (N,E) from that of the weights.
template <typename T>
void route_backward(T* dlogits, const float* dweights, const float* probabilities, const int32_t* chosen,
                    const RouterShape& shape, const BalanceGradient& balance);

// Row r of y (rows,C) becomes x's row sources[r] / divisor, or zeros where sources[r] is -1.
template <typename T>
void gather_rows(T* y, const int32_t* sources, const T* x, int64_t rows, int64_t C, int64_t divisor);

// Row n of y (N,C) becomes the sum of x's rows places[n·k + j] times weights[n·k + j], in the order of j; null: times 1.
template <typename T>
void combine_rows(T* y, const int32_t* places, const float* weights, const T* x, int64_t N, int64_t k,
                  int64_t C);

// For each row r with a source s: dweights[s] = the inner product of dactivated's and activated's rows (rows,F); then
// dactivated's row and dresults' (rows,C) are multiplied with weights[s].
template <typename T>
void weigh_rows(float* dweights, T* dactivated, T* dresults, const T* activated, const float* weights,
                const int32_t* sources, int64_t rows, int64_t F, int64_t C);

}  // namespace shardrun::kernels
