// Which ranks hold other weights than their replicas, from a hash of each rank's shard.
//
// Replicas compute the same bits from the same gradients. Where they differ, memory, a processor or a link of one of them has
// changed a number without an error, and a checkpoint would keep it.
//
// Thread rule: pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::train {

struct ReplicaDifference {
  std::vector<int> ranks;   // those that differ, ascending; empty: none does
  bool is_certain = false;  // most replicas agree against them; else these are all replicas that disagree
};

// `hashes` are of all ranks of the world, in rank order: of each stage of a pipeline, one behind the other. Rank r of a stage
// holds the same shard as r + n * (the stage's ranks / replicas).
ReplicaDifference compare_hashes(std::span<const uint64_t> hashes, int replicas, int stages = 1);

}  // namespace shardrun::train
