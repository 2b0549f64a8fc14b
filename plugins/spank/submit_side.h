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

// Returns the spec at `path`, with what its machine decides, if `shardrun validate` would accept it: batch and ranks
// are solved. Errors: kInvalid, "file:line:column: what; mend"; also for a job of the built-in trainer, because srun
// has its own program, and for a job whose container would have to be started by another runtime than pyxis.
base::Result<spec::JobSpec> check_job(const std::string& path);

// Returns one line for each section or key that asks for what no task of srun has.
std::vector<std::string> sections_without_effect(const spec::JobSpec& spec);

// Refuses what this srun or this place cannot give to the tasks: an image without pyxis or with a folder that cannot be mounted
// (kInvalid), and a cache of compiled code that others can write (kRefused). `working_directory` is absolute.
base::Result<void> check_here(const spec::JobSpec& spec, const contract::EnvironmentLookup& environment,
                              const std::string& working_directory);

// Returns variables that srun, and pyxis in it, read as options, for what `environment` does not say already. Nothing
// is asked of an allocation that exists; options on the command line win over all. `working_directory` is absolute.
std::map<std::string, std::string> srun_defaults(const spec::JobSpec& spec,
                                                 const contract::EnvironmentLookup& environment,
                                                 const std::string& working_directory);

// Refuses a step whose nodes and tasks are not the job's: kInvalid at [resources]; the text says what to write.
base::Result<void> check_counts(const spec::JobSpec& spec, int64_t nodes, int64_t tasks);

}  // namespace shardrun::spank
