// Attention in tiles: kQueries × kKeys scores at a time, with a running maximum and denominator (Dao 2023).
//
// Work is divided over (sequence, key/value head): the group of query heads that share a key head stays on one
// thread, so its key and value gradients are summed in a fixed order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/base/result.h"
#include "runtime/plan/attention_scratch.h"
#include "runtime/trainer/kernels/cpu/attention_parts.h"
#include "runtime/trainer/kernels/cpu/attention_tiles.h"
#include "runtime/trainer/kernels/cpu/ops.h"
#include "runtime/trainer/kernels/cpu/parallel.h"
#include "runtime/trainer/kernels/cpu/thread_workspace.h"
#include "runtime/trainer/kernels/cpu/vector.h"

namespace shardrun::kernels {
namespace {

using base::Cursor;
using plan::BackwardScratch;
using plan::ForwardScratch;
using plan::HeadTiles;
using plan::kKeys;
using plan::kQueries;

constexpr int64_t kLargestHead = 1024;
constexpr int64_t kSmallestRows = 16;  // of tokens to rotate; fewer are not worth a thread

// Loads rows × D of `in`, whose row stride is given, as dense fp32.
void load_tile(float* out, const float* in, int64_t rows, int64_t D, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(out + r * D, in + r * stride, static_cast<size_t>(D) * sizeof(float));
}
void load_tile(float* out, const Bf16* in, int64_t rows, int64_t D, int64_t stride) {
  vector::widen_rows(out, in, rows, D, stride);
}

// Does the same, transposed to D × kKeys.
template <typename Type>
void load_transposed(float* out, const Type* in, int64_t rows, int64_t D, int64_t stride) {
  vector::transpose(out, kKeys, in, rows, D, stride);
}

// Computes scores (rows, kKeys) = scale · q · kᵀ, with -inf where a query may not look.
void masked_scores(float* scores, const float* q, const float* k_transposed, const Seen& seen, int64_t rows,
                   int64_t keys, int64_t D, int64_t first_query, int64_t first_key) {
  std::memset(scores, 0, sizeof(float) * static_cast<size_t>(kKeys * rows));
  vector::multiply_add(scores, kKeys, q, D, k_transposed, kKeys, rows, D, keys);
  for (int64_t r = 0; r < rows; ++r) {
    const Columns columns = seen.in_tile(first_query + r, first_key, keys);
    float* row = scores + r * kKeys;
    std::fill(row, row + columns.begin, -std::numeric_limits<float>::infinity());
    std::fill(row + std::max(columns.begin, columns.end), row + keys,
              -std::numeric_limits<float>::infinity());
  }
}

// Loads all keys, transposed, and values of one sequence and key/value head, which every tile of queries reads.
template <typename Type>
void load_head(const HeadTiles& head, const Slice<const Type>& slice, const Type* kv) {
  const int64_t T = slice.shape.T, D = head.head_size, stride = slice.shape.kv_stride();
  for (int64_t j = 0; j < T; j += kKeys)
    load_transposed(head.k_transposed + j * D, slice.key(kv, j), std::min(kKeys, T - j), D, stride);
  load_tile(head.v, slice.value(kv, 0), T, D, stride);
}

// Returns the scratch of the calling thread.
template <typename Scratch>
Scratch scratch_of(const AttentionShape& shape) {
  Cursor pieces(thread_workspace(plan::attention_workspace_bytes(shape)));
  return Scratch(pieces, shape.T, shape.D);
}

// Folds one tile of keys into the running softmax of `rows` queries.
void fold_tile(ForwardScratch& s, int64_t rows, int64_t first_key, int64_t keys, int64_t D) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = s.scores + r * kKeys;
    const float largest = std::max(s.largest[r], vector::maximum(row, keys));
    const float correction = std::exp(s.largest[r] - largest);
    s.sum[r] = s.sum[r] * correction + vector::exp_shifted(row, row, largest, keys);
    s.largest[r] = largest;
    if (correction != 1.0f) vector::scale(s.out + r * D, correction, D);
  }
  vector::multiply_add(s.out, D, s.scores, kKeys, s.head.v + first_key * D, D, rows, keys, D);
}

// Computes the tile of queries of head h that starts at i, against every key that they may see.
template <typename Type>
void forward_queries(ForwardScratch& s, const Slice<const Type>& slice, const Seen& seen, Type* out,
                     float* lse, const Type* qkv, int64_t h, int64_t i) {
  const int64_t D = slice.shape.D, rows = std::min(kQueries, slice.shape.own_tokens() - i);
  load_tile(s.q, slice.query(qkv, i, h), rows, D, slice.shape.qkv_stride());
  vector::scale(s.q, 1.0f / std::sqrt(static_cast<float>(D)), rows * D);
  std::fill_n(s.out, kQueries * D, 0.0f);
  std::fill_n(s.sum, kQueries, 0.0f);
  std::fill_n(s.largest, kQueries, -std::numeric_limits<float>::max());
  const Columns all = seen.of(i, rows);
  for (int64_t j = all.begin / kKeys * kKeys; j < all.end; j += kKeys) {
    const int64_t keys = std::min(kKeys, all.end - j);
    masked_scores(s.scores, s.q, s.head.k_transposed + j * D, seen, rows, keys, D, i, j);
    fold_tile(s, rows, j, keys, D);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const Columns row = seen.of(i + r);
    const bool sees_any = row.begin < row.end;
    vector::scale(s.out + r * D, sees_any ? 1.0f / s.sum[r] : 0.0f, D);
    lse[slice.lse_at(i + r, h)] = sees_any ? s.largest[r] + std::log(s.sum[r]) : 0.0f;
  }
  store_rows(out + slice.out_at(i, h), s.out, rows, D, slice.shape.H * D);
}

// Computes delta[t] = dout · out, the softmax's own correction.
template <typename Type>
void row_products(BackwardScratch& s, const Slice<const Type>& slice, const Type* dout, const Type* out,
                  int64_t h) {
  const int64_t own = slice.shape.own_tokens(), D = slice.shape.D, stride = slice.shape.H * D;
  for (int64_t i = 0; i < own; i += kQueries) {
    const int64_t rows = std::min(kQueries, own - i);
    load_tile(s.dout, dout + slice.out_at(i, h), rows, D, stride);
    load_tile(s.o, out + slice.out_at(i, h), rows, D, stride);
    for (int64_t r = 0; r < rows; ++r) s.delta[i + r] = vector::dot(s.dout + r * D, s.o + r * D, D);
  }
}

// Handles one pair of query tile and key tile: P from the kept log-sum-exp, then dV += Pᵀ·dO, dS = P∘(dO·Vᵀ -
// delta), dQ += dS·K and dK += dSᵀ·Q. `q` carries the scale already, so dK needs none and dQ gets it at the end.
template <typename Type>
void backward_tile(BackwardScratch& s, const Slice<const Type>& slice, const Seen& seen, const Type* qkv,
                   const Type* dout, const float* lse, int64_t h, int64_t i, int64_t j, float scale) {
  const int64_t D = slice.shape.D, rows = std::min(kQueries, slice.shape.own_tokens() - i);
  const Columns all = seen.of(i, rows);
  if (all.end <= j || all.begin >= j + kKeys) return;
  const int64_t keys = std::min(kKeys, all.end - j);
  load_tile(s.q, slice.query(qkv, i, h), rows, D, slice.shape.qkv_stride());
  vector::scale(s.q, scale, rows * D);
  load_tile(s.dout, dout + slice.out_at(i, h), rows, D, slice.shape.H * D);
  masked_scores(s.p, s.q, s.k_transposed, seen, rows, keys, D, i, j);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = s.p + r * kKeys;
    const Columns columns = seen.in_tile(i + r, j, keys);
    std::fill(row, row + columns.begin, 0.0f);
    vector::exp_shifted(row + columns.begin, row + columns.begin, lse[slice.lse_at(i + r, h)],
                        columns.end - columns.begin);
    std::fill(row + columns.end, row + keys, 0.0f);
  }
  vector::multiply_add_transposed(s.dv + j * D, D, s.p, kKeys, s.dout, D, keys, rows, D);
  std::fill_n(s.dp, kQueries * kKeys, 0.0f);
  vector::multiply_add(s.dp, kKeys, s.dout, D, s.v_transposed, kKeys, rows, D, keys);
  vector::softmax_gradient(s.dp, s.p, s.delta + i, rows, keys, kKeys);
  vector::multiply_add(s.dq + i * D, D, s.dp, kKeys, s.k, D, rows, keys, D);
  vector::multiply_add_transposed(s.dk + j * D, D, s.dp, kKeys, s.q, D, keys, rows, D);
}

template <typename T>
class CpuAttention final : public AttentionOps<T> {
 public:
  void rope(T* x, const float* table, int64_t B, int64_t length, int64_t heads, int64_t D, int64_t stride,
            bool inverse) const override {
    const int64_t half = D / 2;
    parallel_for(B * length, kSmallestRows, [&](int64_t begin, int64_t end) {
      std::vector<float> wide(heads * D);
      for (int64_t n = begin; n < end; ++n) {
        const float* angles = table + n % length * D;
        T* row = x + n * stride;
        float* values = const_cast<float*>(vector::load(row, wide.data(), heads * D));
        for (int64_t head = 0; head < heads; ++head) {
          float* at = values + head * D;
          vector::rotate(at, at + half, angles, angles + half, inverse ? -1.0f : 1.0f, half);
        }
        vector::store(row, values, heads * D);
      }
    });
  }

  void forward(T* out, float* lse, const T* qkv, const AttentionShape& shape,
               const Visibility& visibility) const override {
    SHARDRUN_CHECK(shape.context.ranks == 1);
    attend(out, lse, qkv, qkv, shape, visibility);
  }
  void shared_forward(T* out, float* lse, const T* qkv, const T* kv, const AttentionShape& shape,
                      const Visibility& visibility) const override {
    SHARDRUN_CHECK(shape.context.ranks > 1);
    attend(out, lse, qkv, kv, shape, visibility);
  }
  void backward(T* dqkv, const T* dout, const T* out, const T* qkv, const float* lse,
                const AttentionShape& shape, const Visibility& visibility) const override {
    SHARDRUN_CHECK(shape.context.ranks == 1);
    attend_backward(dqkv, dqkv, dout, out, qkv, qkv, lse, shape, visibility);
  }
  void shared_backward(T* dqkv, float* dkv, const T* dout, const T* out, const T* qkv, const T* kv,
                       const float* lse, const AttentionShape& shape,
                       const Visibility& visibility) const override {
    SHARDRUN_CHECK(shape.context.ranks > 1);
    attend_backward(dqkv, dkv, dout, out, qkv, kv, lse, shape, visibility);
  }

 private:
  static void attend(T* out, float* lse, const T* qkv, const T* kv, const AttentionShape& shape,
                     const Visibility& visibility) {
    const int64_t group = shape.H / shape.K;
    SHARDRUN_CHECK(shape.D <= kLargestHead && shape.H % shape.K == 0);
    if constexpr (std::is_same_v<T, Bf16>) {
      if (tiles::can_attend(shape)) return tiles::attention_forward(out, lse, qkv, kv, shape, visibility);
    }
    parallel_for(shape.B * shape.K, 1, [&](int64_t begin, int64_t end) {
      auto s = scratch_of<ForwardScratch>(shape);
      for (int64_t work = begin; work < end; ++work) {
        const Slice<const T> slice{shape, work / shape.K, work % shape.K};
        const Seen seen(shape, visibility, slice.b);
        load_head(s.head, slice, kv);
        for (int64_t h = slice.k * group; h < (slice.k + 1) * group; ++h) {
          for (int64_t i = 0; i < shape.own_tokens(); i += kQueries)
            forward_queries(s, slice, seen, out, lse, qkv, h, i);
        }
      }
    });
  }

  // Gradients of keys and values: as all others, or fp32 for a sum over ranks.
  template <typename Gradient>
  static void attend_backward(T* dqkv, Gradient* dkv, const T* dout, const T* out, const T* qkv, const T* kv,
                              const float* lse, const AttentionShape& shape, const Visibility& visibility) {
    const int64_t length = shape.T, own = shape.own_tokens(), D = shape.D, group = shape.H / shape.K;
    const int64_t stride = shape.kv_stride();
    const float scale = 1.0f / std::sqrt(static_cast<float>(D));
    SHARDRUN_CHECK(shape.D <= kLargestHead && shape.H % shape.K == 0);
    if constexpr (std::is_same_v<T, Bf16>) {
      if (tiles::can_attend(shape))
        return tiles::attention_backward(dqkv, dkv, dout, out, qkv, kv, lse, shape, visibility);
    }
    parallel_for(shape.B * shape.K, 1, [&](int64_t begin, int64_t end) {
      auto s = scratch_of<BackwardScratch>(shape);
      for (int64_t work = begin; work < end; ++work) {
        const Slice<const T> slice{shape, work / shape.K, work % shape.K};
        const Seen seen(shape, visibility, slice.b);
        const Slice<T> target{shape, slice.b, slice.k};
        const Slice<Gradient> kv_target{shape, slice.b, slice.k};
        std::fill_n(s.dk, length * D, 0.0f);
        std::fill_n(s.dv, length * D, 0.0f);
        for (int64_t h = slice.k * group; h < (slice.k + 1) * group; ++h) {
          row_products(s, slice, dout, out, h);
          std::fill_n(s.dq, own * D, 0.0f);
          for (int64_t j = 0; j < length; j += kKeys) {
            const int64_t keys = std::min(kKeys, length - j);
            load_tile(s.k, slice.key(kv, j), keys, D, stride);
            load_transposed(s.k_transposed, slice.key(kv, j), keys, D, stride);
            load_transposed(s.v_transposed, slice.value(kv, j), keys, D, stride);
            for (int64_t i = 0; i < own; i += kQueries) {
              backward_tile(s, slice, seen, qkv, dout, lse, h, i, j, scale);
            }
          }
          vector::scale(s.dq, scale, own * D);
          store_rows(target.query(dqkv, 0, h), s.dq, own, D, shape.qkv_stride());
        }
        store_rows(kv_target.key(dkv, 0), s.dk, length, D, stride);
        store_rows(kv_target.value(dkv, 0), s.dv, length, D, stride);
      }
    });
  }
};

}  // namespace

template <typename T>
const AttentionOps<T>& cpu_attention() {
  static const CpuAttention<T> ops;
  return ops;
}
template const AttentionOps<float>& cpu_attention();
template const AttentionOps<Bf16>& cpu_attention();

}  // namespace shardrun::kernels
