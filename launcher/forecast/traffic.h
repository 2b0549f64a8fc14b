// What crosses the network in one collective of the ofi plugin, counted from the flows that it carries out
// (plugins/common/layout.h), in which a byte enters a node once.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace shardrun::launcher {

enum class CollectiveKind { kAllGather, kReduceScatter, kAllReduce };

// Ranks that are spread evenly over nodes, those of a node next to each other.
struct OnNodes {
  int64_t ranks = 1, nodes = 1;
};

// What the node that sends most sends to others, all its ranks together.
struct Traffic {
  int64_t messages = 0;  // flows: a long one goes in several segments
  double bytes = 0.0;
};

// `bytes`: that the group holds together; all_reduce: that each rank holds. Up to 64 KiB one rank speaks for its node, as where
// no more than 32 ranks share one.
Traffic traffic_of(CollectiveKind kind, const OnNodes& spread, double bytes);

}  // namespace shardrun::launcher
