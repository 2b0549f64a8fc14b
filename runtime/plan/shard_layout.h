// ShardLayout: which rank owns which elements of every block. Pure arithmetic.
//
// A block's parameters are one flat buffer of `elements`. It is padded to a multiple of
// group_size · kShardAlignment and cut into group_size equal shards in rank order, so that one all-gather or
// one reduce-scatter moves a whole block without copying. A rank keeps its shards of all blocks one behind
// the other in a "flat shard": block b's part is [shard_offset, shard_offset + shard_elements).
//
//   elements 10, two ranks, alignment 4 (for the picture):
//     rank 0: 0 1 2 3 4 5 6 7      rank 1: 8 9 . . . . . .      (. is padding, always zero)
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::plan {

// Elements; 64 bytes of bf16, a cache line, so that no two shards share one in any dtype.
inline constexpr int64_t kShardAlignment = 32;

struct BlockShards {
  int64_t elements = 0;         // of the block, without padding
  int64_t padded_elements = 0;  // group_size · shard_elements
  int64_t shard_elements = 0;   // each rank's part, padding included
  int64_t shard_offset = 0;     // of this block's part in a rank's flat shard
  bool stays = false;           // BlockLayout::stays, in a group of more than one
};

// Elements [begin, end) of a block.
struct ElementRange {
  int64_t begin = 0, end = 0;

  int64_t count() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

struct ShardLayout {
  int group_size = 1;
  std::vector<BlockShards> blocks;
  int64_t flat_shard_elements = 0;  // sum of shard_elements: what one rank owns
  int64_t largest_padded_elements = 0, largest_shard_elements = 0;  // of blocks that do not stay

  int block_count() const { return static_cast<int>(blocks.size()); }
  const BlockShards& block(int index) const { return blocks[index]; }
  // What a rank of the group owns of a block, without padding; begin == end when it owns padding only.
  ElementRange owned(int block_index, int group_rank) const;
};

// `stays`: by block; empty: none. A block may be empty. Sizes below 0 and group sizes below 1 are bugs (CHECK).
ShardLayout make_layout(std::span<const int64_t> block_elements, int group_size,
                        const std::vector<bool>& stays = {});

}  // namespace shardrun::plan
