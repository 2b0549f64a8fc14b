// Collective times: how long collectives take inside a node, between nodes and over both; with nothing beside them, and beside computing, which they take CPUs from and wait for.
//
// Thread rule: one thread, the same calls on all ranks; one helper thread waits for collectives while this one computes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/measure/group_values.h"
#include "runtime/record/calibration.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::measure {

struct CollectiveGroup {
  std::string among;                    // as CollectiveProbe says
  comm::Communicator* group = nullptr;  // of this rank
  int64_t nodes = 1, ranks = 0;         // of the job; ranks of one group
  bool only_replicas = false;  // sharded jobs have no group like it, only replicas: no more than all_reduce
};

// `told` hears what comes next, on every rank. `clocks`: read from this thread and the helper, never from both at once.
// Test: tests/unit/measure/collective_times_test.cpp
base::Result<std::vector<record::CollectiveProbe>> time_collectives(
    comm::Communicator& world, const std::vector<CollectiveGroup>& groups,
    const std::function<void(const std::string&)>& told, const Clocks& clocks = {});

}  // namespace shardrun::measure
