// Strategy: how a job's ranks share the model's state. A strategy is data: a row says who shares a copy, and what becomes
// of a block's parameters after they were gathered. docs/contributing.md names what a new one needs beside its row.
//
//   strategy       shard group    replica group   a gathered block
//   full_shard     all ranks      one rank        lives while it is used, a layer in one of prefetch + 1 buffers
//   hybrid_shard   shard_degree   the others      as full_shard
//   shard_grad_op  all ranks      one rank        stays for a whole optimizer step
//   no_shard       one rank       all ranks       is the rank's own copy: no gather, no buffer
//
// Source: FSDP (Zhao et al. 2023), ZeRO (Rajbhandari et al. 2020).
// Thread rule: constants and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardrun::spec {

enum class Strategy { kFullShard, kHybridShard, kShardGradOp, kNoShard };

// How many data-parallel ranks share a copy of the state.
enum class ShardDegree { kOne, kAll, kAsked };

struct StrategyRules {
  Strategy strategy;
  const char* name;       // in job.toml
  ShardDegree degree;     // kAsked: [sharding] shard_degree
  bool keeps_parameters;  // gathered blocks stay for a whole optimizer step
};

// In the order of the enumerators.
inline constexpr std::array<StrategyRules, 4> kStrategies{{
    {Strategy::kFullShard, "full_shard", ShardDegree::kAll, false},
    {Strategy::kHybridShard, "hybrid_shard", ShardDegree::kAsked, false},
    {Strategy::kShardGradOp, "shard_grad_op", ShardDegree::kAll, true},
    {Strategy::kNoShard, "no_shard", ShardDegree::kOne, false},
}};

constexpr const StrategyRules& rules_of(Strategy strategy) {
  return kStrategies[static_cast<size_t>(strategy)];
}

// Returns the strategies that share a copy among `shard_degree` of `data_parallel` ranks, in the order of the table.
// A group of one shards nothing, and one of all ranks has no replicas.
inline std::vector<Strategy> strategies_of(int64_t shard_degree, int64_t data_parallel) {
  const ShardDegree degree = shard_degree == 1               ? ShardDegree::kOne
                             : shard_degree == data_parallel ? ShardDegree::kAll
                                                             : ShardDegree::kAsked;
  std::vector<Strategy> strategies;
  for (const StrategyRules& rules : kStrategies)
    if (rules.degree == degree) strategies.push_back(rules.strategy);
  return strategies;
}

}  // namespace shardrun::spec
