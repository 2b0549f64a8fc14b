#include "runtime/plan/sharded_state.h"

#include <algorithm>

namespace shardrun::plan {
namespace {

int64_t sum(const std::vector<Buffer>& buffers) {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.bytes();
  return bytes;
}

// Elements of whole blocks, with what is frozen of them.
std::vector<int64_t> whole_blocks(const ShardLayout& layout, const ShardLayout& frozen) {
  std::vector<int64_t> whole;
  for (const BlockShards& block : layout.blocks) whole.push_back(block.stays ? 0 : block.padded_elements);
  for (size_t block = 0; block < frozen.blocks.size(); ++block)
    whole[block] += frozen.blocks[block].padded_elements;
  return whole;
}

// Returns the slots of each unit: layers take turns, unless there is one for each; embedding and head share the one behind those, if they
// are not computed with at once.
std::vector<SlotRange> slots_of(int units, const StateOptions& options) {
  const BlockRange layers = options.layers;
  const auto is_layer = [&](int unit) {
    const int block = options.wrapping.begin(unit);
    return layers.last == 0 || (block >= layers.first && block < layers.last);
  };
  int layer_units = 0;
  for (int unit = 0; unit < units; ++unit) layer_units += int{is_layer(unit)};
  const bool keeps = options.keeps_parameters || options.prefetch + 1 >= units;
  const int turns = keeps ? layer_units : std::min(options.prefetch + 1, layer_units);
  std::vector<SlotRange> slots;
  int next_layer = 0, next = turns;
  for (int unit = 0; unit < units; ++unit) {
    if (is_layer(unit)) {
      slots.push_back(turns == layer_units ? SlotRange{next_layer, next_layer + 1} : SlotRange{0, turns});
      ++next_layer;
      continue;
    }
    slots.push_back({next, next + 1});
    next += int{keeps || options.tied};
  }
  return slots;
}

}  // namespace

BufferCounts buffer_counts(int group_size, int units, const StateOptions& options) {
  if (group_size == 1) return {.gathered = options.converts() ? 1 : 0};
  BufferCounts counts{.whole_gradients = 2, .slots = slots_of(units, options)};
  for (const SlotRange& slots : counts.slots) counts.gathered = std::max(counts.gathered, slots.last);
  if (options.revisits) counts.scratches = 1;  // two reductions of one block are not in flight at once
  if (options.accumulates) counts.scratches = 2;
  return counts;
}

ShardedState sharded_state(const ShardLayout& blocks, const StateOptions& options,
                           const ShardLayout& frozen_blocks) {
  const ShardLayout layout = layout_of_units(blocks, options.wrapping),
                    frozen = layout_of_units(frozen_blocks, options.wrapping);
  const BufferCounts counts = buffer_counts(layout.group_size, layout.block_count(), options);
  ShardedState state;
  state.masters = state.gradients = {layout.flat_shard_elements, 4};
  if (options.compute_bytes != 4 && options.keeps_compute_copy)
    state.compute_copy = {layout.flat_shard_elements, options.compute_bytes};
  state.frozen = {frozen.flat_shard_elements, options.compute_bytes};
  const std::vector<int64_t> whole = whole_blocks(layout, frozen);
  const auto largest = [](int count, const Buffer& buffer) { return std::vector<Buffer>(count, buffer); };
  state.gathered = largest(counts.gathered, {0, options.compute_bytes});
  for (size_t unit = 0; unit < whole.size(); ++unit) {
    const SlotRange all{0, counts.gathered}, slots = counts.slots.empty() ? all : counts.slots[unit];
    for (int slot = slots.first; slot < slots.last; ++slot)
      state.gathered[slot].elements = std::max(state.gathered[slot].elements, whole[unit]);
  }
  state.unit_block.element_bytes = options.compute_bytes;
  const std::vector<int64_t> single = whole_blocks(blocks, frozen_blocks);
  for (int unit = 0; layout.group_size > 1 && unit < layout.block_count(); ++unit) {
    const int begin = options.wrapping.begin(unit), end = options.wrapping.end(unit);
    for (int block = begin; end - begin > 1 && block < end; ++block) {
      state.unit_block.elements = std::max(state.unit_block.elements, single[block]);
      state.unit_gradient.elements =
          std::max(state.unit_gradient.elements, blocks.block(block).padded_elements);
    }
  }
  state.whole_gradients = largest(counts.whole_gradients, {layout.largest_padded_elements, 4});
  state.scratches = largest(counts.scratches, {layout.largest_shard_elements, 4});
  return state;
}

int64_t ShardedState::block_bytes() const {
  return unit_block.bytes() + unit_gradient.bytes() + sum(gathered) + sum(whole_gradients) + sum(scratches);
}

int64_t ShardedState::bytes() const {
  return masters.bytes() + gradients.bytes() + compute_copy.bytes() + frozen.bytes() + block_bytes();
}

}  // namespace shardrun::plan
