// Which program of a node runs the image of a job's [container].
//
// Thread rule: free functions that look at the node.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/contract/rank_env.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

using base::Result;

struct RuntimeProgram {
  spec::ContainerRuntime kind = spec::ContainerRuntime::kAuto;
  std::string path;  // empty for pyxis, which is no program: srun starts a rank in its image
};

// Returns the runtime that the spec names, or for "auto" the first one that PATH of `environment` has; it is the node's PATH,
// for that of [environment] is the program's, in the image. kInvalid, at the key's place, when there is none.
Result<RuntimeProgram> find_container_runtime(const spec::JobSpec& spec,
                                              const EnvironmentLookup& environment);

// Returns the folder of shardrun's installation, in which the rank program and its plugins are.
std::string installation_folder(const record::LaunchPlan& plan);

// Returns what pyxis is told, as the ends of its options' names and their values: image, mounts, workdir, env. Mounted are `folders`,
// each at its own path, and the spec's own; `names` are those of variables that win over the image's.
std::vector<std::pair<std::string, std::string>> pyxis_words(const spec::JobSpec& spec,
                                                             const std::string& working_directory,
                                                             std::vector<std::string> folders,
                                                             const std::set<std::string>& names);

// Returns pyxis's options of srun for a rank with these variables. Mounted are the installation, the run directory, the working
// directory, the cache of compiled code and the spec's own.
std::vector<std::string> pyxis_options(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                       const std::map<std::string, std::string>& variables);

}  // namespace shardrun::contract
