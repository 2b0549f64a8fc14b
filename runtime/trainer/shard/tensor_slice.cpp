#include "runtime/trainer/shard/tensor_slice.h"

#include <algorithm>

#include "runtime/base/result.h"

namespace shardrun::shard {
namespace {

// Index in the slice of an element of the full tensor.
int64_t index_in(const TensorSlice& slice, int64_t row, int64_t column) {
  return (row - slice.row_begin) * slice.columns + column - slice.column_begin;
}

}  // namespace

TensorSlice whole_slice(std::span<const int64_t> shape) {
  TensorSlice slice{0, shape.empty() ? 1 : shape[0], 0, 1};
  for (size_t i = 1; i < shape.size(); ++i) slice.columns *= shape[i];
  return slice;
}

TensorSlice make_slice(std::span<const int64_t> shape, int dimension, int64_t begin, int64_t count) {
  TensorSlice slice = whole_slice(shape);
  if (dimension < 0) return slice;
  SHARDRUN_CHECK(dimension <= 1 && static_cast<size_t>(dimension) < shape.size());
  const int64_t extent = shape[dimension];
  SHARDRUN_CHECK(begin >= 0 && count >= 0 && begin + count <= extent);
  if (dimension == 0) {
    slice.row_begin = begin;
    slice.rows = count;
  } else {
    const int64_t unit = slice.columns / extent;
    slice.column_begin = begin * unit;
    slice.columns = count * unit;
  }
  return slice;
}

TensorSlice rows_of(const TensorSlice& slice, const plan::ElementRange& range) {
  TensorSlice rows = slice;
  rows.rows = 0;
  if (range.count() <= 0 || slice.columns <= 0) return rows;
  rows.row_begin = slice.row_begin + range.begin / slice.columns;
  rows.rows = slice.row_begin + (range.end - 1) / slice.columns + 1 - rows.row_begin;
  return rows;
}

TensorSlice intersection(const TensorSlice& a, const TensorSlice& b) {
  TensorSlice both;
  both.row_begin = std::max(a.row_begin, b.row_begin);
  both.column_begin = std::max(a.column_begin, b.column_begin);
  both.rows = std::max<int64_t>(0, std::min(a.row_end(), b.row_end()) - both.row_begin);
  both.columns = std::max<int64_t>(0, std::min(a.column_end(), b.column_end()) - both.column_begin);
  if (both.columns == 0) both.rows = 0;
  return both;
}

int64_t copy_overlap(const SlicePart<const float>& from, const SlicePart<float>& to,
                     const TensorSlice& only) {
  const TensorSlice both = intersection(intersection(from.slice, to.slice), only);
  if (both.rows == 0) return 0;
  // Whole rows on both sides follow each other without a gap: one long row then.
  const bool one_run = both.columns == from.slice.columns && both.columns == to.slice.columns;
  const TensorSlice read = rows_of(from.slice, from.range), written = rows_of(to.slice, to.range);
  const int64_t first = std::max({both.row_begin, read.row_begin, written.row_begin});
  const int64_t last = std::min({both.row_end(), read.row_end(), written.row_end()});
  const int64_t step = one_run ? std::max<int64_t>(1, last - first) : 1;
  int64_t copied = 0;
  for (int64_t row = first; row < last; row += step) {
    const int64_t source = index_in(from.slice, row, both.column_begin);
    const int64_t target = index_in(to.slice, row, both.column_begin);
    const int64_t begin = std::max({int64_t{0}, from.range.begin - source, to.range.begin - target});
    const int64_t end = std::min({step * both.columns, from.range.end - source, to.range.end - target});
    if (begin >= end) continue;
    std::copy_n(from.values.begin() + (source + begin - from.range.begin), end - begin,
                to.values.begin() + (target + begin - to.range.begin));
    copied += end - begin;
  }
  return copied;
}

}  // namespace shardrun::shard
