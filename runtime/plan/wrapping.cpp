#include "runtime/plan/wrapping.h"

#include <algorithm>

#include "runtime/base/result.h"

namespace shardrun::plan {

Wrapping wrap_blocks(int blocks, const std::vector<BlockRange>& ranges, int together) {
  SHARDRUN_CHECK(together >= 1);
  if (together == 1) return {};
  std::vector<bool> begins(blocks, true);
  for (const BlockRange& range : ranges) {
    SHARDRUN_CHECK(0 <= range.first && range.first <= range.last && range.last <= blocks);
    for (int block = range.first; block < range.last; ++block)
      begins[block] = (block - range.first) % together == 0;
  }
  Wrapping wrapping;
  for (int block = 0; block < blocks; ++block)
    if (begins[block]) wrapping.begins.push_back(block);
  wrapping.begins.push_back(blocks);
  return wrapping;
}

ShardLayout layout_of_units(const ShardLayout& layout, const Wrapping& wrapping) {
  if (wrapping.begins.empty() || layout.blocks.empty()) return layout;
  ShardLayout units{.group_size = layout.group_size, .flat_shard_elements = layout.flat_shard_elements};
  for (int unit = 0; unit < wrapping.units(layout.block_count()); ++unit) {
    const int begin = wrapping.begin(unit), end = wrapping.end(unit);
    BlockShards shards = layout.block(begin);
    for (int block = begin + 1; block < end; ++block) {
      const BlockShards& more = layout.block(block);
      SHARDRUN_CHECK(!shards.stays && !more.stays, "a part that is computed alone is no part of a unit");
      shards.padded_elements += more.padded_elements;
      shards.shard_elements += more.shard_elements;
      shards.elements = shards.padded_elements;
    }
    units.blocks.push_back(shards);
    if (shards.stays) continue;
    units.largest_padded_elements = std::max(units.largest_padded_elements, shards.padded_elements);
    units.largest_shard_elements = std::max(units.largest_shard_elements, shards.shard_elements);
  }
  return units;
}

UnitVisits unit_visits(const Wrapping& wrapping, const std::vector<int>& visits) {
  UnitVisits united;
  for (int number = 0, unit = 0; number < static_cast<int>(visits.size());) {
    unit = visits[number];
    if (!wrapping.begins.empty()) {
      const auto& begins = wrapping.begins;
      unit =
          static_cast<int>(std::upper_bound(begins.begin(), begins.end(), visits[number]) - begins.begin()) -
          1;
    }
    united.units.push_back(unit);
    united.numbers.push_back(number);
    for (int block = wrapping.begin(unit); block < wrapping.end(unit); ++block, ++number)
      SHARDRUN_CHECK(visits.at(number) == block, "a unit is visited whole");
  }
  return united;
}

}  // namespace shardrun::plan
