// TensorSlice: which part of a full tensor somebody holds, and copying between two holders. Pure arithmetic.
//
// A tensor is seen as a matrix of rows × columns (all dimensions but the first two belong to a column), and a slice
// as a rectangle of it, kept row by row without gaps. So a slice along dimension 0 is one run of the full tensor,
// along dimension 1 one run a row. Tensor parallelism makes slices; a checkpoint or a weight file made with another
// degree is read by copying the overlap of two of them.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/plan/shard_layout.h"

namespace shardrun::shard {

struct TensorSlice {
  int64_t row_begin = 0, rows = 0;
  int64_t column_begin = 0, columns = 0;

  int64_t elements() const { return rows * columns; }
  int64_t row_end() const { return row_begin + rows; }
  int64_t column_end() const { return column_begin + columns; }
  friend bool operator==(const TensorSlice&, const TensorSlice&) = default;
};

// The whole tensor; a scalar has shape {}.
TensorSlice whole_slice(std::span<const int64_t> shape);
// [begin, begin + count) along `dimension`, 0 or 1; -1 is the whole tensor. Beyond the shape is a bug (CHECK).
TensorSlice make_slice(std::span<const int64_t> shape, int dimension, int64_t begin, int64_t count);
// The smallest rectangle with whole rows of the slice that holds a range of its elements.
TensorSlice rows_of(const TensorSlice& slice, const plan::ElementRange& range);
// Zero rows when they have nothing in common.
TensorSlice intersection(const TensorSlice& a, const TensorSlice& b);

// Part of a slice that lies in memory: element `range.begin` of the slice is values[0].
template <typename T>
struct SlicePart {
  TensorSlice slice;
  plan::ElementRange range;  // of the slice's elements
  std::span<T> values;
};

// Copies what both hold and what lies in `only`, a rectangle of the full tensor; returns how many elements.
int64_t copy_overlap(const SlicePart<const float>& from, const SlicePart<float>& to, const TensorSlice& only);

}  // namespace shardrun::shard
