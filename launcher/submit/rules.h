// Refusals before anything is queued or started: what a job spec names must be there.
//
// Thread rule: free functions that look at files.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/contract/job_spec.h"
#include "runtime/contract/launch_plan.h"

namespace shardrun::launcher {

// The files that the spec names: data and validation text, a command's program, files that secrets come from.
// Relative paths start at `working_directory`. Errors: kInvalid, "file:line:column: what; mend".
base::Result<void> check_files(const contract::JobSpec& spec, const std::string& working_directory);

// The same, and the parts of shardrun that the plan names: shardrun-rank and the comm plugin.
base::Result<void> check_launch(const contract::JobSpec& spec, const contract::LaunchPlan& plan);

}  // namespace shardrun::launcher
