// Refusals before anything is queued or started: what a job spec names must exist.
//
// Thread rule: free functions that look at files.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Where the ranks will run. What only they need (initial weights, the files of secrets, the checkpoints' folder)
// may be missing on a head node: that is a warning there and a refusal here.
enum class RanksRun { kHere, kElsewhere };

// Each is "file:line:column: what; mend".
using Warnings = std::vector<std::string>;

// Checks the files that the spec names: data and validation text, a command's program, files that secrets come
// from, the checkpoints' folder. Warns of data of another tokenizer than that of the initial weights. Relative paths start at
// `working_directory`. Errors: kInvalid, "file:line:column:
// what; mend".
base::Result<Warnings> check_files(const spec::JobSpec& spec, const std::string& working_directory,
                                   RanksRun where);

// Checks the same, and the parts of shardrun that the plan names: shardrun-rank and the comm plugin. Warns of a min_nodes with
// which the job fits on no smaller number of nodes. A `dry_run`, which starts nothing, is only warned of a missing library for
// GPUs.
base::Result<Warnings> check_launch(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                    bool dry_run = false);

// Returns the file that execvp would start for a program's name; empty where there is none.
std::string find_on_path(const std::string& program);

// Warns of a folder, of the job or of its runs, that other machines most likely do not see: one in memory, or in /tmp. What a
// login node exports cannot be told from here.
Warnings warn_of_private_folders(const spec::JobSpec& spec, const std::string& working_directory,
                                 const std::string& runs_directory);

}  // namespace shardrun::launcher
