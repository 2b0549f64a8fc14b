// The time of one collective over a group of ranks that are spread evenly over nodes.
//
// Volume over the slower of the two links, and hops: a flat ring passes every rank one after the other, collectives by
// node pass the nodes, and inside each of them its ranks. Source: NCCL's tuning.cc for the latency of a hop.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace shardrun::launcher {

struct Group {
  int64_t ranks = 1, nodes = 1;
  int per_node = 1;  // ranks of the group on a node
  int beside = 1;    // groups that share a node's network, this one included
};

struct Links {
  double link_rate = 0.0, network_rate = 0.0;  // bytes/s that are reached: of a rank in its node, of a node
  bool hierarchical = false;
};

// Seconds until every rank has the `bytes` that all of them hold together; as long as a reduce-scatter of them.
double gather_seconds(double bytes, const Group& group, const Links& links);
// Returns the seconds of a sum of `bytes` that every rank has and gets.
double all_reduce_seconds(double bytes, const Group& group, const Links& links);
// Returns the seconds in which every rank sends `bytes` in equal parts to all, itself among them.
double all_to_all_seconds(double bytes, const Group& group, const Links& links);
// Bytes that a rank sends in a gather of `bytes`.
double gather_volume(double bytes, const Group& group);

}  // namespace shardrun::launcher
