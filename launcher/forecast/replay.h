// A training step on a measured machine, replayed event by event as the sharding engine runs it: one rank's main thread
// with its gathers, reductions and waits, and the collectives in flight, which share the network and take CPUs from
// computing. All ranks do the same at the same time.
//
// Source of the schedule: runtime/trainer/train/session.cpp and runtime/trainer/shard/engine.cpp; two operations of a communicator run at
// once, later ones queue (plugins/abi/comm_v1.h).
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
};

// kInvalid: the layout has something that was not measured, in words.
base::Result<StepForecast> replay_step(const MeasuredMachine& machine, const ReplayQuestion& question);

}  // namespace shardrun::launcher
