// Which program of a node runs the image of a job's [container].
//
// Thread rule: free functions that look at the node.
#pragma once

#include "runtime/base/result.h"
#include "runtime/contract/rank_env.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

using base::Result;

// Returns "apptainer", "singularity" or "ch-run".
const char* program_of(spec::ContainerRuntime runtime);

// Returns the runtime that the spec names, or for "auto" the first one that PATH of `environment` has. kInvalid, at
// the key's place, when there is none, and for pyxis, which only srun itself can start.
Result<spec::ContainerRuntime> find_container_runtime(const spec::JobSpec& spec,
                                                      const EnvironmentLookup& environment);

}  // namespace shardrun::contract
