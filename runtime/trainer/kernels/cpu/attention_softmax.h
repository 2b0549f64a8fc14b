// The softmax of attention's tiles, on AVX-512 with bf16, which every CPU has that multiplies pairs of bf16 (tile_products.h).
// This header is internal to kernels/cpu.
//
// A square tile of kScores keys and queries (plan/attention_scratch.h) has a row for each key, a column for each query.
//
// Thread rule: pure functions on the caller's memory, aligned to a cache line. tiles::unit() is not kNone.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels::tiles {

// Each query sees keys [begin, end); the tile's first key is first_key.
struct SeenKeys {
  const int32_t *begin, *end;
  int64_t first_key;
};

// Folds scores into a running softmax: p = exp(scale·(score - largest)) of what is seen, rounded and packed in pairs of rows
// (tile_products.h), and 0 of the rest, under the new `largest` score of each query; `sum` and out (D, kScores) are brought to
// it, and `sum` has p added. A query that has seen no key yet has the least of floats for its largest score, and sum 0.
struct RunningSoftmax {
  float *largest, *sum, *out;
};
void fold_scores(uint32_t* p, const float* scores, const RunningSoftmax& running, const SeenKeys& seen,
                 int64_t D, float scale);

// Turns scores and gradients of probabilities into probabilities p = exp(scale·score - lse) and their scores' gradients
// ds = p·(dp - delta), both rounded, the latter also packed in pairs of rows; 0 where a key is not seen.
struct ScoreTile {
  const float *scores, *dp, *lse, *delta;  // the last two for each query
};
void softmax_and_gradient(Bf16* p, Bf16* ds, uint32_t* ds_rows, const ScoreTile& tile, const SeenKeys& seen,
                          float scale);

}  // namespace shardrun::kernels::tiles
