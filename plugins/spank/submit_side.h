// What the plugin does where a job is submitted, in srun, sbatch and salloc: checks the spec, and gives srun what the
// spec says and its user did not.
//
// Thread rule: free functions; check_job reads files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/contract/rank_env.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::spank {

// The spec at `path`, with what its machine decides, as `shardrun validate` would accept it: batch and ranks are solved.
// Errors: kInvalid, "file:line:column: what; mend"; so is a job of the built-in trainer, for srun has its own program,
// and one whose container another runtime than pyxis would have to start.
base::Result<spec::JobSpec> check_job(const std::string& path);

// One line for each section that asks for what no task of srun has.
std::vector<std::string> sections_without_effect(const spec::JobSpec& spec);

// Variables that srun, and pyxis in it, read as options, for what `environment` does not say already. Of an allocation
// that is there, nothing is asked; options on the command line win over all. `working_directory`: absolute.
std::map<std::string, std::string> srun_defaults(const spec::JobSpec& spec,
                                                 const contract::EnvironmentLookup& environment,
                                                 const std::string& working_directory);

// kInvalid at [resources] when a step of so many nodes and tasks is not the job's; says what to write.
base::Result<void> check_counts(const spec::JobSpec& spec, int64_t nodes, int64_t tasks);

}  // namespace shardrun::spank
