// A training step on a measured machine: the plan that the sharding engine executes (runtime/plan/step.h), timed event by
// event. One rank's main thread computes, starts and awaits; the collectives in flight share the network, or a node's memory
// where they stay within it, and take CPUs from computing. All ranks do the same at the same time. Two operations of a
// communicator run at once, later ones queue (plugins/abi/comm_v1.h).
//
// Thread rule: pure functions.
#pragma once

#include "launcher/forecast/measured.h"
#include "launcher/forecast/step.h"

namespace shardrun::launcher {

struct ReplayQuestion {
  ModelShape model;
  Layout layout;
  int64_t ranks_per_node = 1;
  int prefetch = 1;
  int wrap = 1;          // layers of a unit
  int reduce_bytes = 4;  // of a gradient's element between ranks
};

// kInvalid: the layout has something that was not measured, in words.
base::Result<StepForecast> replay_step(const MeasuredMachine& machine, const ReplayQuestion& question);

}  // namespace shardrun::launcher
