// What a CPU's attention holds on each thread while it works on one sequence and key/value head, in tiles of
// kQueries × kKeys scores. Over nullptr it only counts bytes (base::Cursor).
//
// T tokens, heads of size D; all fp32, row-major. Thread rule: plain values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/memory.h"
#include "runtime/plan/model/ops.h"

namespace shardrun::plan {

inline constexpr int64_t kQueries = 32, kKeys = 64;

// All keys of one head transposed, D × kKeys a tile, and its values: what every tile of queries reads.
struct HeadTiles {
  HeadTiles(base::Cursor& pieces, int64_t T, int64_t D)
      : k_transposed(pieces.take<float>((T + kKeys - 1) / kKeys * D * kKeys)),
        v(pieces.take<float>(T * D)),
        head_size(D) {}
  float *k_transposed, *v;
  int64_t head_size;
};

struct ForwardScratch {
  ForwardScratch(base::Cursor& pieces, int64_t T, int64_t D)
      : head(pieces, T, D),
        q(pieces.take<float>(kQueries * D)),
        out(pieces.take<float>(kQueries * D)),
        scores(pieces.take<float>(kQueries * kKeys)),
        largest(pieces.take<float>(kQueries)),
        sum(pieces.take<float>(kQueries)) {}
  HeadTiles head;
  float *q, *out, *scores, *largest, *sum;
};

struct BackwardScratch {
  BackwardScratch(base::Cursor& pieces, int64_t T, int64_t D)
      : q(pieces.take<float>(kQueries * D)),
        k(pieces.take<float>(kKeys * D)),
        k_transposed(pieces.take<float>(D * kKeys)),
        v_transposed(pieces.take<float>(D * kKeys)),
        dout(pieces.take<float>(kQueries * D)),
        o(pieces.take<float>(kQueries * D)),
        p(pieces.take<float>(kQueries * kKeys)),
        dp(pieces.take<float>(kQueries * kKeys)),
        delta(pieces.take<float>(T)),
        dq(pieces.take<float>(T * D)),
        dk(pieces.take<float>(T * D)),
        dv(pieces.take<float>(T * D)) {}
  float *q, *k, *k_transposed, *v_transposed, *dout, *o, *p, *dp, *delta, *dq, *dk, *dv;
};

// Attention in bf16 by products of packed tiles, kScores × kScores scores at a time: `words` are pairs of bf16, `halves` bf16.
// Tokens are filled up to whole tiles with zeros.
inline constexpr int64_t kScores = 64;
constexpr int64_t whole_tiles(int64_t tokens) {
  return (tokens + kScores - 1) / kScores * kScores;
}

// The forward's: a head's keys, and its values transposed, tile by tile; of one tile of queries itself, packed, its scores, a row
// for each key, its probabilities packed, and its running maximum, sum and output, transposed.
struct TiledForwardScratch {
  TiledForwardScratch(base::Cursor& pieces, int64_t T, int64_t D)
      : v_transposed(pieces.take<uint16_t>(whole_tiles(T) * D)),
        k(pieces.take<uint16_t>(whole_tiles(T) * D)),
        q(pieces.take<uint16_t>(kScores * D)),
        q_columns(pieces.take<uint32_t>(kScores * D / 2)),
        p_rows(pieces.take<uint32_t>(kScores * kScores / 2)),
        scores(pieces.take<float>(kScores * kScores)),
        out(pieces.take<float>(kScores * D)),
        turned(pieces.take<float>(kScores * D)),
        largest(pieces.take<float>(kScores)),
        sum(pieces.take<float>(kScores)),
        begin(pieces.take<int32_t>(kScores)),
        end(pieces.take<int32_t>(kScores)) {}
  uint16_t *v_transposed, *k, *q;
  uint32_t *q_columns, *p_rows;
  float *scores, *out, *turned, *largest, *sum;
  int32_t *begin, *end;
};

// The backward's: a head's keys and values, its keys also transposed, tile by tile, and both gradients; of one tile of queries
// what products read of queries and output gradients, packed both ways; of one pair of tiles scores and their gradients, a row
// for each key.
struct TiledBackwardScratch {
  TiledBackwardScratch(base::Cursor& pieces, int64_t T, int64_t D)
      : k(pieces.take<uint16_t>(whole_tiles(T) * D)),
        v(pieces.take<uint16_t>(whole_tiles(T) * D)),
        k_transposed(pieces.take<uint16_t>(whole_tiles(T) * D)),
        dk(pieces.take<float>(whole_tiles(T) * D)),
        dv(pieces.take<float>(whole_tiles(T) * D)),
        q(pieces.take<uint16_t>(kScores * D)),
        dout(pieces.take<uint16_t>(kScores * D)),
        q_rows(pieces.take<uint32_t>(kScores * D / 2)),
        dout_rows(pieces.take<uint32_t>(kScores * D / 2)),
        q_columns(pieces.take<uint32_t>(kScores * D / 2)),
        dout_columns(pieces.take<uint32_t>(kScores * D / 2)),
        p(pieces.take<uint16_t>(kScores * kScores)),
        ds(pieces.take<uint16_t>(kScores * kScores)),
        ds_rows(pieces.take<uint32_t>(kScores * kScores / 2)),
        scores(pieces.take<float>(kScores * kScores)),
        dp(pieces.take<float>(kScores * kScores)),
        dq(pieces.take<float>(kScores * D)),
        turned(pieces.take<float>(kScores * D)),
        lse(pieces.take<float>(kScores)),
        delta(pieces.take<float>(kScores)),
        begin(pieces.take<int32_t>(kScores)),
        end(pieces.take<int32_t>(kScores)) {}
  uint16_t *k, *v, *k_transposed;
  float *dk, *dv;
  uint16_t *q, *dout;
  uint32_t *q_rows, *dout_rows, *q_columns, *dout_columns;
  uint16_t *p, *ds;
  uint32_t* ds_rows;
  float *scores, *dp, *dq, *turned, *lse, *delta;
  int32_t *begin, *end;
};

// Returns the bytes of each thread, whichever way is taken: a bf16 job finds out where it runs.
inline int64_t attention_workspace_bytes(const AttentionShape& shape) {
  base::Cursor forward(nullptr), backward(nullptr), tiled_forward(nullptr), tiled_backward(nullptr);
  (void)TiledForwardScratch(tiled_forward, shape.T, shape.D);
  (void)TiledBackwardScratch(tiled_backward, shape.T, shape.D);
  (void)ForwardScratch(forward, shape.T, shape.D);
  (void)BackwardScratch(backward, shape.T, shape.D);
  return std::max({forward.bytes(), backward.bytes(), tiled_forward.bytes(), tiled_backward.bytes()});
}

}  // namespace shardrun::plan
