// What Slurm's commands say when they take no job, in words that lead back to the job spec.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns the refusal as "file:line:column: what; mend (Slurm: its own words)", at the key that asks for what is refused. An
// error that says nothing known comes back as it is.
base::Error explain_refusal(const spec::JobSpec& spec, const base::Error& refusal);

// Returns what a pending job's reason means where waiting alone will not help, e.g. of PartitionNodeLimit; else "".
std::string meaning_of_reason(const std::string& reason);

}  // namespace shardrun::launcher
