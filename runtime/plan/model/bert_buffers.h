// Where each activation of a BERT lies, as llama_buffers.h has it for a Llama.
//
// Thread rule: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/plan/model/bert.h"

namespace shardrun::plan {

using base::Cursor;

inline constexpr int64_t kRelations = 2;  // classes of the next-sentence head

// The legend of bert.h as numbers.
struct BertSizes {
  BertSizes(const BertConfig& config, const ModelRun& run)
      : B(run.micro_batch),
        T(run.sequence_length),
        N(B * T),
        C(config.hidden),
        H(config.heads),
        D(C / std::max<int64_t>(1, H)),
        F(config.ffn),
        V(config.vocab),
        P(config.max_positions),
        types(config.type_vocab),
        relations(config.next_sentence ? B : 0),
        first_position(config.first_position()),
        L(config.layers),
        epsilon(static_cast<float>(config.norm_epsilon)),
        checkpointing(run.checkpointing),
        slots(layer_slots(L, run)),
        on_gpu(run.device == DeviceKind::kGpu) {
    // Logits: 32 MiB of fp32, or 1 GiB on a GPU, whose products want many rows, and whole tiles of them.
    const int64_t elements = int64_t{1} << (on_gpu ? 28 : 23), unit = row_unit();
    const int64_t rows = elements / std::max<int64_t>(1, V) / unit * unit;
    M = whole_units(run.most_targets > 0 ? std::min(N, run.most_targets) : N);
    chunk = std::min(M, std::max({int64_t{64}, unit, rows}));
  }

  // Rows of the head for so many predicted tokens. So few shapes of products ever occur; on a GPU one, because each
  // shape is one more that cublasLt has an algorithm chosen for.
  int64_t padded_rows(int64_t predicted) const { return on_gpu ? M : whole_units(predicted); }

  int64_t B, T, N, C, H, D, F, V, P, types;
  int64_t relations;  // pairs of sentences that are judged: B, or none
  int64_t first_position;
  int64_t L;
  float epsilon;
  Checkpointing checkpointing;
  int64_t slots;  // pieces of `saved`: as many as there are layers, unless they wait elsewhere
  bool on_gpu;
  int64_t M;      // rows of predicted tokens at most, padded
  int64_t chunk;  // rows of logits that exist at once

 private:
  int64_t row_unit() const { return on_gpu ? 128 : 16; }
  int64_t whole_units(int64_t rows) const { return (rows + row_unit() - 1) / row_unit() * row_unit(); }
};

// What the backward of one layer needs from its forward.
template <typename T>
struct BertLayerActivations {
  T* input;                              // (N,C)
  float *mean1, *rstd1, *mean2, *rstd2;  // (N)
  float* lse;                            // (B,H,T)
  T* qkv;                                // (N,3C)
  T* attention;                          // (N,C)
  T* sum1;                               // (N,C): what the first LayerNorm reads
  T* normed1;                            // (N,C)
  T* up;                                 // (N,F), before GELU
  T* activated;                          // (N,F)
  T* sum2;                               // (N,C): what the second LayerNorm reads
  int64_t begin = 0, end = 0;            // the layer's piece of `saved`
};

// Where the activations of the heads lie.
template <typename T>
struct BertHeadActivations {
  float *mean, *rstd;  // (M)
  float* logits;       // (chunk,V)
  T* dlogits;          // (chunk,V); for fp32 the logits' place
  T* rows;             // (M,C): the predicted tokens' hidden states
  T* transformed;      // (M,C), before GELU
  T* activated;        // (M,C)
  T* normed;           // (M,C)
  T* first;            // (B,C): the hidden states of column 0
  T* pooled;           // (B,C)
  float* relation;     // (B,2) logits
  T* drelation;        // (B,2)
};

template <typename T>
struct BertBuffers {
  BertBuffers(const BertSizes& s, std::byte* saved_memory, std::byte* scratch_memory) {
    Cursor saved(saved_memory), scratch(scratch_memory);
    BertLayerActivations<T> shared{};  // of all layers: what backward computes again
    take_rest(shared, s, scratch, s.checkpointing == Checkpointing::kFull);
    take_cheap(shared, s, scratch, s.checkpointing != Checkpointing::kNone);
    layers.assign(s.L, shared);
    for (size_t index = 0; index < layers.size(); ++index) {
      BertLayerActivations<T>& layer = layers[index];
      if (index >= static_cast<size_t>(s.slots)) {
        layer = layers[index - static_cast<size_t>(s.slots)];
        continue;
      }
      saved.start_page();
      layer.begin = saved.bytes();
      saved.take(layer.input, s.N * s.C);
      for (float** row : {&layer.mean2, &layer.rstd2}) saved.take(*row, s.N);
      take_rest(layer, s, saved, s.checkpointing != Checkpointing::kFull);
      take_cheap(layer, s, saved, s.checkpointing == Checkpointing::kNone);
      layer.end = saved.bytes();
    }
    saved_bytes = saved.bytes();
    if (!layers.empty()) piece_bytes = layers.front().end - layers.front().begin;
    window_bytes_ = piece_bytes + s.N * s.C * int64_t{sizeof(T)};

    const int64_t M = s.M;
    for (int32_t** row : {&tokens, &positions, &segments, &begins}) scratch.take(*row, s.N);
    for (int32_t** row : {&predicted, &targets}) scratch.take(*row, M);
    scratch.take(lengths, s.B);
    for (int32_t** row : {&next_sentence, &first_rows}) scratch.take(*row, s.relations);
    for (float** row : {&mean, &rstd}) scratch.take(*row, s.N);
    scratch.take(losses, kLosses);
    scratch.take(norm_gradient, 2 * s.C);
    for (T** rows : {&embedded, &output, &gradient, &narrow}) scratch.take(*rows, s.N * s.C);
    scratch.take(wide, s.N * std::max(3 * s.C, s.F));
    scratch.take(dnormed, M * s.C);
    scratch.take(dpooled, s.relations * s.C);
    take_head(s, M, scratch);
    scratch_bytes = scratch.bytes();
  }

  int32_t *tokens, *positions, *segments, *begins;  // (N)
  int32_t *predicted, *targets;                     // (M): rows with a target, and their targets
  int32_t* lengths;                                 // (B)
  int32_t *next_sentence, *first_rows;              // (relations)
  float *mean, *rstd;                               // (N), of the embedding's LayerNorm
  double* losses;                                   // of the micro-batch: Model::loss_sums; of a chunk
  float* norm_gradient;  // (2,C): of a LayerNorm's weights, before they are added to others
  T* embedded;           // (N,C): what it reads
  std::vector<BertLayerActivations<T>> layers;
  T* output;  // (N,C), of the last layer
  BertHeadActivations<T> head;
  T* gradient;  // (N,C): of the stream, and of the sums inside a layer
  T *narrow, *wide, *dnormed, *dpooled;
  int64_t saved_bytes = 0, scratch_bytes = 0;
  int64_t piece_bytes = 0;  // of one layer in `saved`

  // Returns the bytes of `saved` that are in memory at a time when it lies in a file: one layer, and the input that it makes for the next.
  int64_t offload_window() const { return std::min(saved_bytes, window_bytes_); }

 private:
  int64_t window_bytes_ = 0;
  // What only the matrix products and attention can make again.
  static void take_rest(BertLayerActivations<T>& layer, const BertSizes& s, Cursor& cursor, bool here) {
    if (!here) return;
    for (float** row : {&layer.mean1, &layer.rstd1}) cursor.take(*row, s.N);
    cursor.take(layer.lse, s.B * s.H * s.T);
    cursor.take(layer.qkv, s.N * 3 * s.C);
    for (T** rows : {&layer.attention, &layer.sum1, &layer.sum2}) cursor.take(*rows, s.N * s.C);
    cursor.take(layer.up, s.N * s.F);
  }
  // What one pass over memory makes again.
  static void take_cheap(BertLayerActivations<T>& layer, const BertSizes& s, Cursor& cursor, bool here) {
    if (!here) return;
    cursor.take(layer.normed1, s.N * s.C);
    cursor.take(layer.activated, s.N * s.F);
  }
  void take_head(const BertSizes& s, int64_t M, Cursor& cursor) {
    for (float** row : {&head.mean, &head.rstd}) cursor.take(*row, M);
    for (T** rows : {&head.rows, &head.transformed, &head.activated, &head.normed})
      cursor.take(*rows, M * s.C);
    for (T** rows : {&head.first, &head.pooled}) cursor.take(*rows, s.relations * s.C);
    cursor.take(head.relation, s.relations * kRelations);
    cursor.take(head.drelation, s.relations * kRelations);
    cursor.take(head.logits, s.chunk * s.V);
    if constexpr (sizeof(T) == sizeof(float)) {
      head.dlogits = head.logits;
    } else {
      cursor.take(head.dlogits, s.chunk * s.V);
    }
  }
};

}  // namespace shardrun::plan
