// Ops of tensor parallelism: the vocabulary is cut into equal slices, one for each rank.
//
// Legend and rules are as in ops.h; V is the length of a slice and `first` its first token. There is one definition
// (kernels/cpu/sliced_ops.cpp), which is tested against the ops of the whole vocabulary.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels {

// Writes y (N,C) fp32: row n is row tokens[n] - first of w (V,C), or zeros for a token of another slice.
template <typename T>
void embedding_slice_forward(float* y, const int32_t* tokens, const T* w, int64_t N, int64_t C, int64_t V,
                             int64_t first);
// Writes dw (V,C) fp32 = rows of dy (N,C) summed by token in ascending n, or += when `accumulate`; tokens of other
// slices are skipped.
template <typename T>
void embedding_slice_backward(float* dw, const int32_t* tokens, const T* dy, int64_t N, int64_t C, int64_t V,
                              int64_t first, bool accumulate = false);

// Writes what the other ranks need of a slice of the logits (N,V) fp32 to know the softmax of the whole: for each
// row the largest logit, the sum of exp(logit - largest), and the target's logit, or 0 when it lies in another
// slice. stats has the shape (N,kSliceStats).
void classifier_slice_stats(float* stats, const float* logits, const int32_t* targets, int64_t N, int64_t V,
                            int64_t first);
// Does as cross_entropy, for a slice: gathered (ranks,N,3) are the stats of all ranks in rank order, so every rank
// returns the same bits. dlogits (N,V).
template <typename T>
double cross_entropy_slice(T* dlogits, const float* logits, const float* gathered, const int32_t* targets,
                           int64_t N, int64_t V, int64_t first, int ranks, float loss_scale);

// Writes out = in in the compute dtype; both have `count` elements.
template <typename T>
void from_fp32(T* out, const float* in, int64_t count);

}  // namespace shardrun::kernels
