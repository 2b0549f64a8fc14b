// Which program of a node runs the image of a job's [container].
//
// Thread rule: free functions that look at the node.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/contract/rank_env.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

using base::Result;

// Returns "apptainer", "singularity" or "ch-run".
const char* program_of(spec::ContainerRuntime runtime);

// Returns the runtime that the spec names, or for "auto" the first one that PATH of `environment` has. kInvalid, at
// the key's place, when there is none. Pyxis is no program: srun starts a rank in its image.
Result<spec::ContainerRuntime> find_container_runtime(const spec::JobSpec& spec,
                                                      const EnvironmentLookup& environment);

// Returns the folder of shardrun's installation, in which the rank program and its plugins are.
std::string installation_folder(const record::LaunchPlan& plan);

// Returns pyxis's options of srun for a rank with these variables: the image, the working directory, names that win over the
// image's, and mounts: the installation, the run directory, the working directory, then the spec's own.
std::vector<std::string> pyxis_options(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                       const std::map<std::string, std::string>& variables);

}  // namespace shardrun::contract
