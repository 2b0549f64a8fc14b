#include "runtime/trainer/train/initialize.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "runtime/base/counter_random.h"

namespace shardrun::train {
namespace {

constexpr int64_t kWorthThreads = int64_t{1} << 20;  // elements: milliseconds of one thread

// One parameter's part of a rank's flat shard.
struct Piece {
  const model::ParameterInfo* parameter;
  int64_t first_element;  // of the parameter
  int64_t shard_offset;   // where it lies in the flat shard
  int64_t count;
  int64_t tensor;  // the parameter's number in the model
};

std::vector<Piece> pieces_of(std::span<const model::BlockLayout> blocks, const plan::ShardLayout& layout,
                             int group_rank) {
  SHARDRUN_CHECK(blocks.size() == layout.blocks.size());
  std::vector<Piece> pieces;
  int64_t tensor = -1;
  for (int block = 0; block < layout.block_count(); ++block) {
    const plan::ElementRange owned = layout.owned(block, group_rank);
    for (const model::ParameterInfo& parameter : blocks[block].parameters) {
      ++tensor;
      const int64_t begin = std::max(owned.begin, parameter.offset);
      const int64_t end = std::min(owned.end, parameter.offset + parameter.elements());
      if (begin >= end) continue;
      pieces.push_back({&parameter, begin - parameter.offset,
                        layout.block(block).shard_offset + begin - owned.begin, end - begin, tensor});
    }
  }
  return pieces;
}

// Which element of the full tensor an element of this rank's slice is.
int64_t full_element(const model::ParameterInfo& parameter, int64_t element) {
  if (parameter.split_dimension < 0) return element;
  const auto columns_of = [](const std::vector<int64_t>& shape) {
    return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
  };
  const int64_t columns = columns_of(parameter.shape), full_columns = columns_of(parameter.full_shape);
  const int64_t row = element / columns, column = element % columns;
  return parameter.split_dimension == 0 ? (row + parameter.split_begin) * full_columns + column
                                        : row * full_columns + column + parameter.split_begin;
}

}  // namespace

void initialize_parameters(std::span<const model::BlockLayout> blocks, const plan::ShardLayout& layout,
                           int group_rank, uint64_t seed, std::span<float> master) {
  for (const Piece& piece : pieces_of(blocks, layout, group_rank)) {
    const double stddev = piece.parameter->init_stddev;
    const uint64_t key = base::random_bits(seed, base::hash_name(piece.parameter->name));
#pragma omp parallel for schedule(static) if (piece.count > kWorthThreads)
    for (int64_t i = 0; i < piece.count; ++i) {
      const auto element = static_cast<uint64_t>(full_element(*piece.parameter, piece.first_element + i));
      const double value =
          stddev == 0.0 ? piece.parameter->init_value : stddev * base::random_normal(key, element);
      master[piece.shard_offset + i] = static_cast<float>(value);
    }
  }
}

std::vector<optim::UpdateRange> update_ranges(std::span<const model::BlockLayout> blocks,
                                              const plan::ShardLayout& layout, int group_rank) {
  std::vector<optim::UpdateRange> ranges;
  for (const Piece& piece : pieces_of(blocks, layout, group_rank)) {
    ranges.push_back({piece.shard_offset, piece.count, piece.parameter->weight_decay,
                      piece.parameter->split_dimension < 0, piece.tensor});
  }
  return ranges;
}

}  // namespace shardrun::train
