// Collective times: how long collectives take inside a node, between nodes and over both, while nothing computes, how much
// CPU time they cost, and how fast they go while their ranks compute (docs/decisions/0131, 0146).
//
// Thread rule: one thread, the same calls on all ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/measure/clocks.h"
#include "runtime/record/calibration.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::measure {

struct CollectiveGroup {
  std::string among;                    // as in CollectiveProbe
  comm::Communicator* group = nullptr;  // the one that this rank belongs to
  int64_t nodes = 1, ranks = 0;         // nodes of the job; ranks of one group
  // Sharded jobs have no group like it, only replicas do: nothing beyond all_reduce is timed.
  bool only_replicas = false;
};

// `told` hears what comes next, on every rank.
// Test: tests/unit/measure/collective_times_test.cpp
base::Result<std::vector<record::CollectiveProbe>> time_collectives(
    comm::Communicator& world, const std::vector<CollectiveGroup>& groups,
    const std::function<void(const std::string&)>& told, const Clocks& clocks = {});

}  // namespace shardrun::measure
