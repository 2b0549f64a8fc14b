#include "runtime/plan/shard_layout.h"

#include <algorithm>

#include "runtime/base/result.h"

namespace shardrun::plan {

ElementRange ShardLayout::owned(int block_index, int group_rank) const {
  const BlockShards& shards = block(block_index);
  const int64_t begin = std::min(shards.elements, group_rank * shards.shard_elements);
  return {begin, std::min(shards.elements, begin + shards.shard_elements)};
}

ShardLayout make_layout(std::span<const int64_t> block_elements, int group_size,
                        const std::vector<bool>& stays) {
  SHARDRUN_CHECK(group_size >= 1);
  ShardLayout layout;
  layout.group_size = group_size;
  for (int64_t elements : block_elements) {
    SHARDRUN_CHECK(elements >= 0);
    const int64_t unit = group_size * kShardAlignment;
    const int64_t padded = (elements + unit - 1) / unit * unit;
    const int64_t shard = padded / group_size;
    const bool own = group_size > 1 && !stays.empty() && stays[layout.blocks.size()];
    SHARDRUN_CHECK(!own || elements == padded, "a part that is computed alone has padding");
    layout.blocks.push_back({elements, padded, shard, layout.flat_shard_elements, own});
    layout.flat_shard_elements += shard;
    if (own) continue;
    layout.largest_padded_elements = std::max(layout.largest_padded_elements, padded);
    layout.largest_shard_elements = std::max(layout.largest_shard_elements, shard);
  }
  return layout;
}

}  // namespace shardrun::plan
