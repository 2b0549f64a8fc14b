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

// Returns the bytes of each thread.
inline int64_t attention_workspace_bytes(const AttentionShape& shape) {
  base::Cursor forward(nullptr), backward(nullptr);
  (void)ForwardScratch(forward, shape.T, shape.D);
  (void)BackwardScratch(backward, shape.T, shape.D);
  return std::max(forward.bytes(), backward.bytes());
}

}  // namespace shardrun::plan
