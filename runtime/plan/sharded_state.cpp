#include "runtime/plan/sharded_state.h"

#include <algorithm>

namespace shardrun::plan {
namespace {

int64_t sum(const std::vector<Buffer>& buffers) {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.bytes();
  return bytes;
}

}  // namespace

BufferCounts buffer_counts(int group_size, int blocks, const StateOptions& options) {
  if (group_size == 1) return {.gathered = options.converts() ? 1 : 0};
  BufferCounts counts{.gathered = options.keeps_parameters ? blocks : std::min(options.prefetch + 1, blocks),
                      .whole_gradients = 2};
  if (options.revisits) counts.scratches = 1;  // two reductions of one block are not in flight at once
  if (options.accumulates) counts.scratches = 2;
  return counts;
}

ShardedState sharded_state(const ShardLayout& layout, const StateOptions& options,
                           const ShardLayout& frozen) {
  const BufferCounts counts = buffer_counts(layout.group_size, layout.block_count(), options);
  ShardedState state;
  state.masters = state.gradients = {layout.flat_shard_elements, 4};
  if (options.compute_bytes != 4 && options.keeps_compute_copy)
    state.compute_copy = {layout.flat_shard_elements, options.compute_bytes};
  state.frozen = {frozen.flat_shard_elements, options.compute_bytes};
  std::vector<int64_t> whole;  // blocks, with what is frozen of them
  for (const BlockShards& block : layout.blocks) whole.push_back(block.stays ? 0 : block.padded_elements);
  for (size_t block = 0; block < frozen.blocks.size(); ++block)
    whole[block] += frozen.blocks[block].padded_elements;
  const auto largest = [](int count, const Buffer& buffer) { return std::vector<Buffer>(count, buffer); };
  state.gathered =
      largest(counts.gathered, {*std::max_element(whole.begin(), whole.end()), options.compute_bytes});
  if (layout.group_size > 1 && options.keeps_parameters) {
    for (size_t block = 0; block < whole.size(); ++block) state.gathered[block].elements = whole[block];
  }
  state.whole_gradients = largest(counts.whole_gradients, {layout.largest_padded_elements, 4});
  state.scratches = largest(counts.scratches, {layout.largest_shard_elements, 4});
  return state;
}

int64_t ShardedState::block_bytes() const {
  return sum(gathered) + sum(whole_gradients) + sum(scratches);
}

int64_t ShardedState::bytes() const {
  return masters.bytes() + gradients.bytes() + compute_copy.bytes() + frozen.bytes() + block_bytes();
}

}  // namespace shardrun::plan
