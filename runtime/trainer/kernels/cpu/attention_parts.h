// How attention's loops find their way in tensors: where a head's rows lie, and which columns a row sees.
//
// This header is internal to kernels/cpu. Thread rule: plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/trainer/kernels/cpu/vector.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels {

// One sequence and one key/value head of a tensor laid out as attention's input.
template <typename Type>
struct Slice {
  const AttentionShape& shape;
  int64_t b, k;

  // `row` counts the rank's own tokens, t those of the sequence. `kv` is qkv of a rank that has all of them.
  Type* query(Type* qkv, int64_t row, int64_t h) const {
    return qkv + (b * shape.own_tokens() + row) * shape.qkv_stride() + h * shape.D;
  }
  Type* key(Type* kv, int64_t t) const {
    return kv + (b * shape.T + t) * shape.kv_stride() + shape.first_key() + k * shape.D;
  }
  Type* value(Type* kv, int64_t t) const { return key(kv, t) + shape.K * shape.D; }
  int64_t out_at(int64_t row, int64_t h) const {
    return (b * shape.own_tokens() + row) * shape.H * shape.D + h * shape.D;
  }
  int64_t lse_at(int64_t row, int64_t h) const { return (b * shape.H + h) * shape.own_tokens() + row; }
};

// Columns [begin, end) of a sequence.
struct Columns {
  int64_t begin, end;
};

// The columns that each of the rank's tokens of one sequence sees: without gaps, because documents have none.
class Seen {
 public:
  Seen(const AttentionShape& shape, const Visibility& visibility, int64_t b) : rows_(shape.T) {
    const int64_t T = shape.T, length = visibility.lengths ? visibility.lengths[b] : T;
    const int32_t* begins = visibility.begins ? visibility.begins + b * T : nullptr;
    int64_t document_end = T;
    for (int64_t t = T; t-- > 0;) {
      if (begins != nullptr && t + 1 < T && begins[t + 1] != begins[t]) document_end = t + 1;
      const int64_t document = begins != nullptr ? begins[t] : 0;
      const int64_t begin = visibility.window > 0 ? std::max(document, t + 1 - visibility.window) : document;
      const int64_t end = std::min(length, visibility.causal ? t + 1 : document_end);
      rows_[t] = {begin, std::max(begin, end)};
    }
    // A rank's tokens stand no earlier in the sequence than among its own.
    const int64_t own = shape.own_tokens();
    for (int64_t row = 0; row < own; ++row) rows_[row] = rows_[shape.context.position(row, T)];
    rows_.resize(own);
  }

  Columns of(int64_t row) const { return rows_[row]; }
  // Returns the columns from the first one that one of the tokens sees to the last.
  Columns of(int64_t first, int64_t count) const {
    Columns all{std::numeric_limits<int64_t>::max(), 0};
    for (int64_t t = first; t < first + count; ++t) {
      const Columns row = of(t);
      if (row.begin < row.end) all = {std::min(all.begin, row.begin), std::max(all.end, row.end)};
    }
    return all;
  }
  // Returns those of token t inside the tile of `keys` keys at first_key, counted from there.
  Columns in_tile(int64_t t, int64_t first_key, int64_t keys) const {
    const Columns row = of(t);
    return {std::clamp<int64_t>(row.begin - first_key, 0, keys),
            std::clamp<int64_t>(row.end - first_key, 0, keys)};
  }

 private:
  std::vector<Columns> rows_;
};

// Writes rows of fp32 as they are kept.
inline void store_rows(float* out, const float* in, int64_t rows, int64_t D, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(out + r * stride, in + r * D, static_cast<size_t>(D) * sizeof(float));
}
inline void store_rows(Bf16* out, const float* in, int64_t rows, int64_t D, int64_t stride) {
  vector::narrow_rows(out, in, rows, D, stride);
}

}  // namespace shardrun::kernels
