// ContextPlace: which tokens of a sequence a rank of a context group has. This is pure arithmetic.
//
// With causal attention late tokens look at more than early ones. A sequence is therefore cut into twice as many pieces as
// there are ranks, and rank r has piece r and the r-th from the end, so that all ranks compute as many scores ("zigzag", as
// Brandon et al. 2023 and Llama 3's report have it):
//
//   4 ranks, 8 pieces:   0 1 2 3 3 2 1 0
//
// Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>

namespace shardrun::plan {

struct ContextPlace {
  int rank = 0, ranks = 1;

  // `tokens` of the sequence are a multiple of 2·ranks.
  int64_t piece_tokens(int64_t tokens) const { return ranks == 1 ? tokens : tokens / (2 * ranks); }
  int64_t own_tokens(int64_t tokens) const { return tokens / ranks; }
  // Returns the two pieces of a group's rank, in their order; a rank alone has one, of all tokens.
  int64_t first_piece(int of_rank) const { return of_rank; }
  int64_t second_piece(int of_rank) const { return 2 * ranks - 1 - of_rank; }
  // Returns where in the sequence the rank's token number `own` stands.
  int64_t position(int64_t own, int64_t tokens) const {
    if (ranks == 1) return own;
    const int64_t piece = piece_tokens(tokens);
    return own < piece ? first_piece(rank) * piece + own : second_piece(rank) * piece + own - piece;
  }
};

}  // namespace shardrun::plan
