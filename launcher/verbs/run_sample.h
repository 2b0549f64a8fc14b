// What monitoring is told of a run: gathered from its directory, and from its conductor while it goes on.
//
// Effect: reads files, and makes the connection of launcher/watch/look.h to a run that goes on. Thread rule: any thread.
#pragma once

#include "launcher/runs/run_state.h"
#include "launcher/view/prometheus.h"

namespace shardrun::launcher {

RunSample sample_of(const record::RunDir& run, const RunState& state);

}  // namespace shardrun::launcher
