// Network check: what all ranks measure together before the first step.
//
//   clocks      every rank reads its clock between two barriers. The reading happened after the first rank entered the
//               first one and before it left the second, so the offset lies between two numbers whatever was slow.
//   all-reduce  over all ranks, of more and more bytes until it takes long enough to be timed; the best of some rounds
//   pairs       only where that is slow, or where nothing is known to compare it with: the all-reduce of the ranks of
//               two nodes, for all neighbours in a ring of nodes, so that each node is in two pairs and a slow node is
//               in two slow ones. Pairs that share no node are timed at once.
//
// Thread rule: one thread, the same calls on all ranks.
#pragma once

#include <string>
#include <vector>

#include "runtime/record/preflight.h"
#include "runtime/trainer/comm/world.h"

namespace shardrun::gate {

struct NetworkOptions {
  comm::WorldOptions world;
  std::string node;  // ours
  int ranks_per_node = 1;
  double usual_bytes_per_second = 0.0;  // 0: not known
};

struct NetworkResult {
  record::Measurement measured;  // the same on all ranks, but for clocks and pairs, which the first one has
  bool is_first = false;         // this rank reports
};

// Errors: of comm::meet and of the collectives, about global ranks.
base::Result<NetworkResult> check_network(const NetworkOptions& options);

// Which round of pairs the edge from node i to the next of `nodes` in the ring belongs to: edges of one round share no
// node.
constexpr int pair_round(int edge, int nodes) {
  return nodes % 2 == 1 && edge == nodes - 1 ? 2 : edge % 2;
}

// The channels of the plugin: one of all ranks and one for each round, which serves all its pairs. However many nodes
// there are, no rank needs more than these.
inline constexpr int kNetworkChannels = 4;
constexpr int channel_of_round(int round) {
  return 1 + round;
}

}  // namespace shardrun::gate
