// Initial weights of a rank's shard.
//
// Element i of parameter P is stddev · normal(hash(seed, P's name), i), or 1 for norms: a pure function, so a
// rank fills only what it owns, and every world size starts from the same model. Thread rule: pure but for
// the span that is written; large parameters use the OpenMP threads of the calling thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/plan/shard_layout.h"
#include "runtime/trainer/model/llama.h"
#include "runtime/trainer/optim/adamw.h"

namespace shardrun::train {

// `master`: the flat shard of `group_rank`; its padding is left alone.
void initialize_parameters(std::span<const model::BlockLayout> blocks, const plan::ShardLayout& layout,
                           int group_rank, uint64_t seed, std::span<float> master);

// The parts of the flat shard that hold parameters, with what the optimizer must know of each. Padding is in
// none.
std::vector<optim::UpdateRange> update_ranges(std::span<const model::BlockLayout> blocks,
                                              const plan::ShardLayout& layout, int group_rank);

}  // namespace shardrun::train
