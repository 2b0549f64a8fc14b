// Blocks and rank states for the checkpoint tests: the value of every element says which element it is.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/trainer/checkpoint/store.h"
#include "tests/support/folder.h"

namespace shardrun::checkpoint {

using tests::Folder;

// Returns a small model as tensor rank `tensor_rank` of `tensor_parallel` has it: three blocks with whole tensors,
// tensors split along dimension 0 (unevenly when 7 rows do not divide) and along dimension 1, and one that two
// tensor ranks hold alike.
std::vector<model::BlockLayout> blocks_of(int tensor_rank, int tensor_parallel);
Manifest manifest_of(int64_t step, const Spread& spread);
std::vector<Place> all_places(const Spread& spread);

// One rank's flat shards with storage. Element e of full tensor t of block b holds 10000·b + 1000·t + e + `shift`,
// plus .25 and .5 in the moments.
struct RankState {
  RankState(const Place& place, bool fill, float shift = 0.0F);
  ShardState view() { return {master, moment1, moment2}; }
  LoadTarget target() const { return {blocks, layout, shard_rank}; }

  std::vector<model::BlockLayout> blocks;
  plan::ShardLayout layout;
  int shard_rank;
  std::vector<float> master, moment1, moment2;
};

// Saves all ranks one after another, then publishes.
void save(const Store& store, int64_t step, const Spread& spread, float shift = 0.0F);
Result<void> load_rank(const Store& store, int64_t step, const Place& place);

}  // namespace shardrun::checkpoint
