// Where what experts need lies: of a layer between its forward and its backward, and while one is computed.
//
// An expert computes the rows of its tokens, which begin at a multiple of kExpertRows and are filled up to one with zeros: so
// there are few sizes of matrix products, and each is compiled once. Nothing is dropped: the buffers have room for all that may
// come, which of experts on this rank alone is always as much, and of experts on several ranks the case that every token of all of
// them chooses experts of this one.
//
// Legend: N tokens of this rank, E experts of a layer, k that a token chooses, C and F as in llama.h.
// Thread rule: plain values; ExpertBuffers is thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/memory.h"
#include "runtime/spec/model_spec.h"

namespace shardrun::plan {

using base::Cursor;

inline constexpr int64_t kExpertRows = 16;  // a power of two

struct ExpertSizes {
  ExpertSizes() = default;
  ExpertSizes(const spec::ExpertSpec& experts, int64_t tokens, int64_t ranks_of_experts, int64_t hidden,
              int64_t ffn)
      : N(tokens),
        E(experts.count),
        k(experts.wanted() ? experts.per_token : 0),
        ranks(ranks_of_experts),
        own(E / ranks),
        arriving(ranks * N * std::min(k, own)),
        rows((arriving + (kExpertRows - 1) * own) / kExpertRows * kExpertRows),
        C(hidden),
        F(ffn) {}
  int64_t N = 0, E = 0, k = 0;
  int64_t ranks = 1, own = 0;  // that share the experts, and the experts of each
  int64_t arriving = 0;        // rows that may come to this rank, from all
  int64_t rows = 0;            // of its experts, with those that fill up
  int64_t C = 0, F = 0;

  // Returns the most rows of one expert: every token may choose it, once.
  int64_t most_rows() const { return (ranks * N + kExpertRows - 1) / kExpertRows * kExpertRows; }
};

// What the backward of one layer needs from its forward.
template <typename T>
struct ExpertActivations {
  float* probabilities;  // (N,E): the router's
  int32_t* chosen;       // (N,k): experts in falling order of probability
  float* weights;        // (N,k): theirs in the sum
  T* gate_up;            // (rows,2F)
  T* activated;          // (rows,F)
  int32_t* counts;  // (ranks,E), of experts on several ranks: how many rows each rank has for each expert
};

template <typename T>
struct ExpertBuffers {
  int32_t* sources = nullptr;  // (rows): which of the rows that came here each is; -1: it fills up
  int32_t* places = nullptr;   // (arriving): the other way round
  float* dweights = nullptr;   // (N,k)
  T* dlogits = nullptr;        // (N,E)
  T* inputs = nullptr;         // (rows,C): what the experts compute
  T* results = nullptr;  // (rows,C): what comes out, and in backward its gradient and that of the inputs
  T *dactivated = nullptr, *dgate_up = nullptr;  // (rows,F) and (rows,2F)
  // With experts on several ranks. What leaves lies in the order of experts, what comes in that of ranks, then of experts.
  int32_t *order = nullptr,
          *positions = nullptr;  // (N,k): the assignments in that order, and the other way round
  T *outgoing = nullptr, *incoming = nullptr;                       // (N·k,C) and (arriving,C)
  float* outgoing_weights = nullptr;                                // (N,k), in that order
  float *incoming_weights = nullptr, *incoming_dweights = nullptr;  // (arriving)

  void take(const ExpertSizes& s, Cursor& cursor) {
    if (s.E == 0) return;
    cursor.take(sources, s.rows);
    cursor.take(places, s.arriving);
    cursor.take(dweights, s.N * s.k);
    cursor.take(dlogits, s.N * s.E);
    cursor.take(inputs, s.rows * s.C);
    cursor.take(results, s.rows * s.C);
    cursor.take(dactivated, s.rows * s.F);
    cursor.take(dgate_up, s.rows * 2 * s.F);
    if (s.ranks == 1) return;
    cursor.take(order, s.N * s.k);
    cursor.take(positions, s.N * s.k);
    cursor.take(outgoing, s.N * s.k * s.C);
    cursor.take(incoming, s.arriving * s.C);
    cursor.take(outgoing_weights, s.N * s.k);
    cursor.take(incoming_weights, s.arriving);
    cursor.take(incoming_dweights, s.arriving);
  }
  // Of a layer: what the router said; what the products made; what one pass over memory makes again.
  static void take_routing(ExpertActivations<T>& a, const ExpertSizes& s, Cursor& cursor) {
    cursor.take(a.probabilities, s.N * s.E);
    cursor.take(a.chosen, s.N * s.k);
    cursor.take(a.weights, s.N * s.k);
    if (s.ranks > 1) cursor.take(a.counts, s.ranks * s.E);
  }
  static void take_products(ExpertActivations<T>& a, const ExpertSizes& s, Cursor& cursor) {
    cursor.take(a.gate_up, s.rows * 2 * s.F);
  }
  static void take_activated(ExpertActivations<T>& a, const ExpertSizes& s, Cursor& cursor) {
    cursor.take(a.activated, s.rows * s.F);
  }
};

}  // namespace shardrun::plan
