#include "runtime/plan/sharded_state.h"

#include <algorithm>

namespace shardrun::plan {
namespace {

std::vector<Buffer> gathered_blocks(const ShardLayout& layout, const StateOptions& options) {
  const Buffer largest{layout.largest_padded_elements, options.compute_bytes};
  if (layout.group_size == 1) return {options.converts() ? 1U : 0U, largest};
  if (!options.keeps_parameters)
    return {static_cast<size_t>(std::min(options.prefetch + 1, layout.block_count())), largest};
  std::vector<Buffer> blocks;
  for (const BlockShards& block : layout.blocks)
    blocks.push_back({block.padded_elements, options.compute_bytes});
  return blocks;
}

int64_t sum(const std::vector<Buffer>& buffers) {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.bytes();
  return bytes;
}

}  // namespace

ShardedState sharded_state(const ShardLayout& layout, const StateOptions& options) {
  ShardedState state;
  state.masters = state.gradients = {layout.flat_shard_elements, 4};
  if (options.compute_bytes != 4 && options.keeps_compute_copy)
    state.compute_copy = {layout.flat_shard_elements, options.compute_bytes};
  state.gathered = gathered_blocks(layout, options);
  if (layout.group_size == 1) return state;
  state.whole_gradients.assign(2, {layout.largest_padded_elements, 4});
  // Reductions of one block that is visited twice are never both added at once.
  const size_t scratches = options.accumulates ? 2 : options.revisits ? 1 : 0;
  state.scratches.assign(scratches, {layout.largest_shard_elements, 4});
  return state;
}

int64_t ShardedState::block_bytes() const {
  return sum(gathered) + sum(whole_gradients) + sum(scratches);
}

int64_t ShardedState::bytes() const {
  return masters.bytes() + gradients.bytes() + compute_copy.bytes() + block_bytes();
}

}  // namespace shardrun::plan
