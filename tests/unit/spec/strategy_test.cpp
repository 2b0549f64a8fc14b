#include "runtime/spec/strategy.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace shardrun::spec;

TEST_CASE("strategy: each has the row of its number") {
  for (size_t i = 0; i < kStrategies.size(); ++i) CHECK(kStrategies[i].strategy == static_cast<Strategy>(i));

  CHECK_EQ(rules_of(Strategy::kShardGradOp).name, std::string("shard_grad_op"));
  CHECK(rules_of(Strategy::kShardGradOp).keeps_parameters);
  CHECK(rules_of(Strategy::kHybridShard).degree == ShardDegree::kAsked);
}

TEST_CASE("strategy: who shares a copy says which strategies there are") {
  using All = std::vector<Strategy>;

  CHECK(strategies_of(1, 8) == All{Strategy::kNoShard});
  CHECK(strategies_of(2, 8) == All{Strategy::kHybridShard});
  CHECK(strategies_of(8, 8) == All{Strategy::kFullShard, Strategy::kShardGradOp});
  CHECK(strategies_of(1, 1) == All{Strategy::kNoShard});
}
