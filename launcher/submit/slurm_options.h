// What [slurm] of a job spec says, as words for sbatch and salloc.
//
// The words are given to these programs as an argument vector. No shell and no #SBATCH line reads them, so a value may hold
// any character.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns "--qos=high" and the like, without the dependency, which is a matter of the submission.
std::vector<std::string> slurm_options(const spec::JobSpec& spec);

// Returns the variables that sbatch (`prefix` "SBATCH_") or salloc ("SALLOC_") shall not see. Some would overrule a line of the
// script, for sbatch takes its environment's word before the script's; those that say what the job leaves open (a partition, an
// account) stay. The others are what another job, in which we are typed, says of its own size: srun would take it for the new one's.
std::vector<std::string> variables_against(const spec::JobSpec& spec, const std::string& prefix = "SBATCH_");

// Returns what --dependency takes: the end of job `after` (empty: none) and what the spec asks for; "" for nothing.
std::string slurm_dependency(const spec::JobSpec& spec, const std::string& after);

// Compares the options with the long options that `help`, the output of `program --help`, lists. kInvalid, "file:line:column:
// what; mend", for one that it lacks and for one whose value is missing or too much.
base::Result<void> check_slurm_options(const spec::JobSpec& spec, const std::string& help,
                                       const std::string& program);

}  // namespace shardrun::launcher
