// Where each activation of a Llama lies.
//
// What backward needs from forward lies in `saved`, one piece a layer of each micro-batch under way, which may be memory in a file;
// the rest is scratch. A LlamaBuffers over nullptr only counts bytes, which is what plans are made of; the trainer's, over memory, hands
// out the pointers by the same code, so that the plan and the use cannot differ. T: any type of the compute dtype's size.
// Thread rule: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/compute.h"
#include "runtime/base/memory.h"
#include "runtime/plan/model/adapters.h"
#include "runtime/plan/model/expert_buffers.h"
#include "runtime/plan/model/llama_sizes.h"
#include "runtime/plan/model/shared_keys.h"

namespace shardrun::plan {

using base::Cursor;

// Where fp8 lies: the scales of every block, and what one layer needs while it runs.
struct Fp8Memory {
  static constexpr int kLinears = 4, kTensors = 3;  // of a block; of a layer: input, weight, output gradient
  static_assert(kLinears * kTensors == kFp8TensorsOfBlock);
  static constexpr int64_t kScalingBytes = 8;  // of a tensor: its scale, and the largest value that was seen
  // Numbers from one inverse to the next: cublasLt takes them at 16 bytes alone.
  static constexpr int64_t kInverseStride = 4;

  std::byte* scalings = nullptr;
  float* inverses = nullptr;                       // of the three
  uint8_t *input = nullptr, *weight = nullptr;     // in rows or in columns
  uint8_t *gradient = nullptr, *turned = nullptr;  // in rows and in columns

  // The largest of each, in elements.
  void take(Cursor& cursor, int64_t blocks, int64_t inputs, int64_t weights, int64_t gradients) {
    cursor.take(scalings, blocks * kFp8TensorsOfBlock * kScalingBytes);
    cursor.take(inverses, kTensors * kInverseStride);
    cursor.take(input, inputs);
    cursor.take(weight, weights);
    cursor.take(gradient, gradients);
    cursor.take(turned, gradients);
  }
};

// What the backward of one layer needs from its forward.
template <typename T>
struct LlamaLayerActivations {
  T* input;              // (R,C): the residual stream before the layer
  float *rrms1, *rrms2;  // (R)
  float* lse;            // (B,H,T)
  float* head_rrms;      // (N,H+K), with head norms
  T* heads;              // (N,(H+K)·D): queries and keys before their norms, with head norms
  T* normed1;            // (N,C)
  T* qkv;                // (N,QKV), rotated
  T* attention;          // (N,H·D)
  T* middle;             // (R,C): the residual stream between attention and feed-forward
  T* normed2;            // (N,C)
  T* gate_up;            // (N,2F)
  T* activated;          // (N,F)
  ExpertActivations<T> experts;
  int64_t begin = 0, end = 0;  // the layer's piece of `saved`
};

template <typename T>
struct LlamaBuffers {
  LlamaBuffers(const LlamaSizes& s, std::byte* saved_memory, std::byte* scratch_memory) {
    Cursor saved(saved_memory), scratch(scratch_memory);
    LlamaLayerActivations<T> shared{};  // of all layers: what backward computes again
    take_rest(shared, s, scratch, s.checkpointing == Checkpointing::kFull);
    take_cheap(shared, s, scratch, s.checkpointing != Checkpointing::kNone);
    layers.assign(s.held, shared);
    for (size_t index = 0; index < layers.size(); ++index) {
      LlamaLayerActivations<T>& layer = layers[index];
      if (index >= static_cast<size_t>(s.slots)) {
        layer = layers[index - static_cast<size_t>(s.slots)];
        continue;
      }
      saved.start_page();
      layer.begin = saved.bytes();
      saved.take(layer.input, s.R * s.C);
      if (s.experts.E > 0) {  // their block is visited without the one that could make these again
        saved.take(layer.normed2, s.N * s.C);
        ExpertBuffers<T>::take_routing(layer.experts, s.experts, saved);
      }
      take_rest(layer, s, saved, s.checkpointing != Checkpointing::kFull);
      take_cheap(layer, s, saved, s.checkpointing == Checkpointing::kNone);
      layer.end = saved.bytes();
    }
    saved_bytes = saved.bytes();
    if (!layers.empty()) piece_bytes = layers.front().end - layers.front().begin;
    window_bytes_ = piece_bytes + s.R * s.C * int64_t{sizeof(T)};

    scratch.take(tokens, s.N);
    scratch.take(targets, s.N);
    scratch.take(begins, s.B * s.T);
    scratch.take(rope, s.W * s.D);
    if (s.has_head) scratch.take(head_rrms, s.R);
    scratch.take(losses, kLosses);
    if (s.accumulates || s.lora_rank > 0)
      scratch.take(norm_gradient, std::max(s.C, s.head_norms ? 2 * s.D : 0));
    if (s.has_head) scratch.take(logits, s.chunk * s.V);
    scratch.take(output, s.R * s.C);
    if (s.has_head) scratch.take(head_normed, s.N * s.C);
    scratch.take(dstream, s.R * s.C);
    scratch.take(narrow, s.N * std::max({s.C, s.dense_F, s.HD}));
    scratch.take(wide, s.N * std::max({2 * s.dense_F, s.QKV, s.C}));
    experts.take(s.experts, scratch);
    if (s.lora_rank > 0) {
      scratch.take(low, s.N * s.lora_rank);
      scratch.take(dlow, s.N * s.lora_rank);
      scratch.take(adapted, s.N * s.adapted);
    }
    if (s.sharers > 1) shared_keys.take(s, scratch);
    if (s.ranks > 1) {
      scratch.take(gathered, s.N * s.C);
      scratch.take(partial, s.N * s.C);
      scratch.take(part, s.R * s.C);
      scratch.take(stats, s.ranks * s.chunk * base::kSliceStats);
    }
    if (s.fp8) {
      const int64_t outputs = std::max({2 * s.F, s.QKV, s.C}), inputs = std::max({s.C, s.F, s.HD});
      const int64_t weights = s.C * std::max({2 * s.F, s.QKV, s.HD});
      fp8.take(scratch, s.L, s.N * inputs, weights, s.N * outputs);
    }
    if constexpr (sizeof(T) == sizeof(float)) {
      dlogits = logits;  // in place
    } else if (s.has_head) {
      scratch.take(dlogits, s.chunk * s.V);
    }
    scratch_bytes = scratch.bytes();
  }

  // The model's, or on a stage of a pipeline as many as are held at once (HeldLayers).
  std::vector<LlamaLayerActivations<T>> layers;
  int32_t *tokens = nullptr, *targets = nullptr, *begins = nullptr;
  float *rope = nullptr, *head_rrms = nullptr, *logits = nullptr;
  // (C) or (2,D), of norms' weights, before it is added to another's; with adapters nobody reads it.
  float* norm_gradient = nullptr;
  double* losses = nullptr;
  T* output = nullptr;  // (R,C): the residual stream after the last layer
  T *head_normed = nullptr, *dstream = nullptr, *narrow = nullptr, *wide = nullptr, *dlogits = nullptr;
  // With adapters: x·Aᵀ (N,R) and its gradient, and what one adds to a product, or the gradient of that.
  T *low = nullptr, *dlow = nullptr, *adapted = nullptr;
  // In a tensor group of more than one rank: rows of all ranks, products before and after their sum, the classifier's stats.
  T* gathered = nullptr;
  float *partial = nullptr, *part = nullptr, *stats = nullptr;
  SharedKeys<T> shared_keys;
  ExpertBuffers<T> experts;
  Fp8Memory fp8;
  int64_t saved_bytes = 0, scratch_bytes = 0;
  int64_t piece_bytes = 0;  // of one layer in `saved`

  // Returns the bytes of `saved` that are in memory at a time when it lies in a file: one layer, and the input that it makes for the next.
  int64_t offload_window() const { return std::min(saved_bytes, window_bytes_); }

 private:
  int64_t window_bytes_ = 0;
  // What only the matrix products and attention can make again.
  static void take_rest(LlamaLayerActivations<T>& a, const LlamaSizes& s, Cursor& cursor, bool here) {
    if (!here) return;
    cursor.take(a.rrms1, s.R);
    cursor.take(a.rrms2, s.R);
    cursor.take(a.lse, s.B * s.H * s.W);
    if (s.head_norms) {
      cursor.take(a.head_rrms, s.N * (s.H + s.K));
      cursor.take(a.heads, s.N * (s.H + s.K) * s.D);
    }
    cursor.take(a.qkv, s.N * s.QKV);
    cursor.take(a.attention, s.N * s.HD);
    cursor.take(a.middle, s.R * s.C);
    if (s.experts.E > 0) return ExpertBuffers<T>::take_products(a.experts, s.experts, cursor);
    cursor.take(a.gate_up, s.N * 2 * s.F);
  }
  // What one pass over memory makes again.
  static void take_cheap(LlamaLayerActivations<T>& a, const LlamaSizes& s, Cursor& cursor, bool here) {
    if (!here) return;
    cursor.take(a.normed1, s.N * s.C);
    if (s.experts.E > 0) return ExpertBuffers<T>::take_activated(a.experts, s.experts, cursor);
    cursor.take(a.normed2, s.N * s.C);
    cursor.take(a.activated, s.N * s.F);
  }
};

}  // namespace shardrun::plan
