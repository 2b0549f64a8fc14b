// A tile has kScores × kScores scores, a row for each key and a column for each query: then loops run along queries, whose
// maxima and sums are columns, and every product finds its first operand in rows. O' += V'·P and dQ' += K'·dS are transposed,
// with V' and K' transposed once for a head; dV += P·dO and dK += dS·Q are not.
#include "runtime/trainer/kernels/cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/memory.h"
#include "runtime/plan/attention_scratch.h"
#include "runtime/trainer/kernels/cpu/attention_parts.h"
#include "runtime/trainer/kernels/cpu/attention_softmax.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/thread_workspace.h"
#include "runtime/trainer/kernels/cpu/tile_products.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels::tiles {
namespace {

using plan::kScores;
using plan::TiledBackwardScratch;
using plan::TiledForwardScratch;
using plan::whole_tiles;

Bf16* bf16(uint16_t* bits) {
  return reinterpret_cast<Bf16*>(bits);
}

// Rows that are `stride` elements apart.
struct Rows {
  const Bf16* at;
  int64_t stride;
};

// Copies rows × D of `in` and fills up to `all` rows with zeros.
void copy_rows(Bf16* out, const Bf16* in, int64_t rows, int64_t all, int64_t D, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(out + r * D, in + r * stride, static_cast<size_t>(D) * sizeof(Bf16));
  std::memset(static_cast<void*>(out + rows * D), 0, static_cast<size_t>((all - rows) * D) * sizeof(Bf16));
}

// Returns a whole tile of rows of `in`: where they lie, or copied and filled up.
Rows tile_of(uint16_t* copy, const Bf16* in, int64_t rows, int64_t D, int64_t stride) {
  if (rows == kScores) return {in, stride};
  copy_rows(bf16(copy), in, rows, kScores, D, stride);
  return {bf16(copy), D};
}

template <typename Scratch>
Scratch scratch_of(const AttentionShape& shape) {
  base::Cursor pieces(thread_workspace(plan::attention_workspace_bytes(shape)));
  return Scratch(pieces, shape.T, shape.D);
}

// Writes T × D of `in` transposed, a tile of (D, kScores) behind the other.
template <typename Scratch>
void transpose_head(uint16_t* out, Scratch& s, const Bf16* in, const AttentionShape& shape) {
  const int64_t T = shape.T, D = shape.D, stride = shape.kv_stride();
  for (int64_t j = 0; j < T; j += kScores) {
    const Rows rows = tile_of(s.q, in + j * stride, std::min(kScores, T - j), D, stride);
    transpose(bf16(out) + j * D, kScores, s.q_columns, rows.at, kScores, D, rows.stride);
  }
}

// Writes columns of x (D, kScores) as rows of `out`, times `factors` of each column; `turned` is (kScores, D).
void narrow_columns(Bf16* out, float* turned, const float* x, const float* factors, int64_t columns,
                    int64_t D, int64_t stride) {
  transpose(turned, x, D, kScores);
  for (int64_t c = 0; c < columns; ++c) {
    vector::scale(turned + c * D, factors[c], D);
    vector::narrow(out + c * stride, turned + c * D, D);
  }
}

// Writes which keys the queries from i on see; those of no token see nothing.
void load_seen(int32_t* begin, int32_t* end, const Seen& seen, int64_t i, int64_t rows) {
  for (int64_t r = 0; r < kScores; ++r) {
    const Columns columns = r < rows ? seen.of(i + r) : Columns{0, 0};
    begin[r] = static_cast<int32_t>(columns.begin);
    end[r] = static_cast<int32_t>(columns.end);
  }
}

// Computes the tile of queries of head h that starts at i, against every key that they may see.
void forward_queries(TiledForwardScratch& s, const Slice<const Bf16>& slice, const Seen& seen, Bf16* out,
                     float* lse, const Bf16* qkv, int64_t h, int64_t i) {
  const int64_t D = slice.shape.D;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const int64_t rows = std::min(kScores, slice.shape.own_tokens() - i);
  const Rows q = tile_of(s.q, slice.query(qkv, i, h), rows, D, slice.shape.qkv_stride());
  pack_transposed(s.q_columns, q.at, kScores, D, q.stride);
  std::fill_n(s.out, kScores * D, 0.0f);
  std::fill_n(s.sum, kScores, 0.0f);
  std::fill_n(s.largest, kScores, -std::numeric_limits<float>::max());
  load_seen(s.begin, s.end, seen, i, rows);
  const Columns columns = seen.of(i, rows);
  for (int64_t j = columns.begin / kScores * kScores; j < columns.end; j += kScores) {
    multiply(s.scores, kScores, bf16(s.k) + j * D, D, s.q_columns, kScores, kScores, D, kScores, false);
    fold_scores(s.p_rows, s.scores, {s.largest, s.sum, s.out}, {s.begin, s.end, j}, D, scale);
    multiply(s.out, kScores, bf16(s.v_transposed) + j * D, kScores, s.p_rows, kScores, D, kScores, kScores,
             true);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const bool sees_any = s.begin[r] < s.end[r];
    lse[slice.lse_at(i + r, h)] = sees_any ? scale * s.largest[r] + std::log(s.sum[r]) : 0.0f;
    s.sum[r] = sees_any ? 1.0f / s.sum[r] : 0.0f;
  }
  narrow_columns(out + slice.out_at(i, h), s.turned, s.out, s.sum, rows, D, slice.shape.H * D);
}

// Starts on one key/value head: its keys and values, keys also transposed, and no gradients yet.
void load_head(TiledBackwardScratch& s, const Slice<const Bf16>& slice, const Bf16* kv) {
  const int64_t T = slice.shape.T, D = slice.shape.D, all = whole_tiles(T), elements = all * D;
  copy_rows(bf16(s.k), slice.key(kv, 0), T, all, D, slice.shape.kv_stride());
  copy_rows(bf16(s.v), slice.value(kv, 0), T, all, D, slice.shape.kv_stride());
  transpose_head(s.k_transposed, s, slice.key(kv, 0), slice.shape);
  std::fill_n(s.dk, elements, 0.0f);
  std::fill_n(s.dv, elements, 0.0f);
}

// Loads what the pairs of tiles with queries from i on read.
void load_queries(TiledBackwardScratch& s, const Slice<const Bf16>& slice, const Seen& seen, const Bf16* qkv,
                  const Bf16* dout, const Bf16* out, const float* lse, int64_t h, int64_t i) {
  const int64_t D = slice.shape.D, stride = slice.shape.H * D;
  const int64_t rows = std::min(kScores, slice.shape.own_tokens() - i);
  const Rows q = tile_of(s.q, slice.query(qkv, i, h), rows, D, slice.shape.qkv_stride());
  const Rows douts = tile_of(s.dout, dout + slice.out_at(i, h), rows, D, stride);
  pack(s.q_rows, q.at, kScores, D, q.stride);
  pack(s.dout_rows, douts.at, kScores, D, douts.stride);
  pack_transposed(s.q_columns, q.at, kScores, D, q.stride);
  pack_transposed(s.dout_columns, douts.at, kScores, D, douts.stride);
  load_seen(s.begin, s.end, seen, i, rows);
  std::fill_n(s.lse, kScores, 0.0f);
  std::fill_n(s.delta, kScores, 0.0f);
  std::copy_n(lse + slice.lse_at(i, h), rows, s.lse);
  vector::row_products(s.delta, dout + slice.out_at(i, h), out + slice.out_at(i, h), rows, D, stride);
  std::fill_n(s.dq, kScores * D, 0.0f);
}

// Handles one pair of tiles: keys from j on, and the queries that are loaded.
void backward_tile(TiledBackwardScratch& s, int64_t D, int64_t j, float scale) {
  multiply(s.scores, kScores, bf16(s.k) + j * D, D, s.q_columns, kScores, kScores, D, kScores, false);
  multiply(s.dp, kScores, bf16(s.v) + j * D, D, s.dout_columns, kScores, kScores, D, kScores, false);
  softmax_and_gradient(bf16(s.p), bf16(s.ds), s.ds_rows, {s.scores, s.dp, s.lse, s.delta},
                       {s.begin, s.end, j}, scale);
  multiply(s.dv + j * D, D, bf16(s.p), kScores, s.dout_rows, D, kScores, kScores, D, true);
  multiply(s.dk + j * D, D, bf16(s.ds), kScores, s.q_rows, D, kScores, kScores, D, true);
  multiply(s.dq, kScores, bf16(s.k_transposed) + j * D, kScores, s.ds_rows, kScores, D, kScores, kScores,
           true);
}

// Adds up all that head h contributes.
void backward_head(TiledBackwardScratch& s, const Slice<const Bf16>& slice, const Slice<Bf16>& target,
                   const Seen& seen, Bf16* dqkv, const Bf16* dout, const Bf16* out, const Bf16* qkv,
                   const float* lse, int64_t h) {
  const int64_t own = slice.shape.own_tokens(), D = slice.shape.D;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  for (int64_t i = 0; i < own; i += kScores) {
    const int64_t rows = std::min(kScores, own - i);
    load_queries(s, slice, seen, qkv, dout, out, lse, h, i);
    const Columns columns = seen.of(i, rows);
    for (int64_t j = columns.begin / kScores * kScores; j < columns.end; j += kScores)
      backward_tile(s, D, j, scale);
    std::fill_n(s.lse, kScores, scale);  // not in use any more
    narrow_columns(target.query(dqkv, i, h), s.turned, s.dq, s.lse, rows, D, slice.shape.qkv_stride());
  }
}

}  // namespace

bool can_attend(const AttentionShape& shape) {
  return unit() != Unit::kNone && shape.D % kTile == 0 && shape.D <= kScores * kScores;
}

void attention_forward(Bf16* out, float* lse, const Bf16* qkv, const Bf16* kv, const AttentionShape& shape,
                       const Visibility& visibility) {
  const int64_t group = shape.H / shape.K, own = shape.own_tokens();
  parallel_for(shape.B * shape.K, 1, [&](int64_t begin, int64_t end) {
    const TileSession session;
    auto s = scratch_of<TiledForwardScratch>(shape);
    for (int64_t work = begin; work < end; ++work) {
      const Slice<const Bf16> slice{shape, work / shape.K, work % shape.K};
      const Seen seen(shape, visibility, slice.b);
      copy_rows(bf16(s.k), slice.key(kv, 0), shape.T, whole_tiles(shape.T), shape.D, shape.kv_stride());
      transpose_head(s.v_transposed, s, slice.value(kv, 0), shape);
      for (int64_t h = slice.k * group; h < (slice.k + 1) * group; ++h) {
        for (int64_t i = 0; i < own; i += kScores) forward_queries(s, slice, seen, out, lse, qkv, h, i);
      }
    }
  });
}

template <typename Gradient>
void attention_backward(Bf16* dqkv, Gradient* dkv, const Bf16* dout, const Bf16* out, const Bf16* qkv,
                        const Bf16* kv, const float* lse, const AttentionShape& shape,
                        const Visibility& visibility) {
  const int64_t group = shape.H / shape.K, T = shape.T, D = shape.D;
  parallel_for(shape.B * shape.K, 1, [&](int64_t begin, int64_t end) {
    const TileSession session;
    auto s = scratch_of<TiledBackwardScratch>(shape);
    for (int64_t work = begin; work < end; ++work) {
      const Slice<const Bf16> slice{shape, work / shape.K, work % shape.K};
      const Slice<Bf16> target{shape, slice.b, slice.k};
      const Slice<Gradient> kv_target{shape, slice.b, slice.k};
      const Seen seen(shape, visibility, slice.b);
      load_head(s, slice, kv);
      for (int64_t h = slice.k * group; h < (slice.k + 1) * group; ++h)
        backward_head(s, slice, target, seen, dqkv, dout, out, qkv, lse, h);
      vector::scale(s.dk, 1.0f / std::sqrt(static_cast<float>(D)), T * D);
      store_rows(kv_target.key(dkv, 0), s.dk, T, D, shape.kv_stride());
      store_rows(kv_target.value(dkv, 0), s.dv, T, D, shape.kv_stride());
    }
  });
}
template void attention_backward(Bf16*, Bf16*, const Bf16*, const Bf16*, const Bf16*, const Bf16*,
                                 const float*, const AttentionShape&, const Visibility&);
template void attention_backward(Bf16*, float*, const Bf16*, const Bf16*, const Bf16*, const Bf16*,
                                 const float*, const AttentionShape&, const Visibility&);

}  // namespace shardrun::kernels::tiles
