// Node check: what a node finds out about itself before the first step, without asking others. It states facts;
// launcher/gate judges them.
//
// Thread rule: free functions; they look at files, open the comm plugin for a moment and may run nvidia-smi.
#pragma once

#include "runtime/record/launch_plan.h"
#include "runtime/record/preflight.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/comm/world.h"

namespace shardrun::gate {

// Returns the plugin and the provider that the job asks for. A command program has its own network libraries: for
// it, the ofi plugin is taken with the provider that it finds itself, or efa where [environment] names that to
// libfabric.
comm::WorldOptions world_options(const spec::JobSpec& spec, const record::LaunchPlan& plan);

record::NodeFacts check_node(const std::string& node, const spec::JobSpec& spec,
                             const record::LaunchPlan& plan);

// Returns how many more checkpoints will be written and stay when `existing` are there: the number includes one
// more than are kept, because the newest is complete before the oldest is removed.
int64_t checkpoints_to_come(const spec::JobSpec& spec, int64_t existing);

}  // namespace shardrun::gate
