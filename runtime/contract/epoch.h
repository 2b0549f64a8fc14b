// Epoch: which attempt of a run may write; it is the fencing token of a run directory.
//
// An attempt is taken by making its folder attempt_<n>, which only one conductor can do, and its number is one more than
// that of any before it. The file `epoch` holds the number of the newest attempt and is replaced by an atomic rename
// before the attempt's first process starts. Whoever is about to publish something in the name of an older attempt
// finds a larger number, or the folder of the attempt after its own, and must not. docs/decisions/0016 and 0050 say
// what this covers and what the checkpoint store does beyond it.
//
// Thread rule: free functions.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_dir.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

// Errors: kNotFound before the first attempt, kCorrupt when the file holds no number, kIo.
base::Result<int> read_epoch(const record::RunDir& run);
// Error: kIo.
base::Result<void> write_epoch(const record::RunDir& run, int attempt);
// Takes the number of the next attempt: one more than any that was ever taken, and its folder exists from now on.
// Does not write `epoch`. Error: kIo.
base::Result<int> take_attempt(const record::RunDir& run);
// Refuses (kRefused) when a later attempt has begun, naming both. A run without the file has no rule to break.
base::Result<void> check_epoch(const record::RunDir& run, int attempt);

// Returns [checkpoint] directory as an absolute path.
std::string checkpoint_directory(const spec::JobSpec& spec, const record::LaunchPlan& plan);
// Returns where an attempt's checkpoints grow until they are published: a folder inside the checkpoint directory
// that only the attempt's conductor makes. Without it nothing can be written or renamed from it: that is the fence.
std::string checkpoint_stage(const std::string& checkpoint_directory, const std::string& run_id, int attempt);
// Makes the attempt's stage, with the directory around it, and takes the stages of the run's earlier attempts and of
// other runs away. kRefused when a later attempt of the run has begun: nothing of that one is touched, and this attempt
// has no stage. kIo.
base::Result<void> fence_checkpoints(const record::RunDir& run, const std::string& checkpoint_directory,
                                     const std::string& run_id, int attempt);

}  // namespace shardrun::contract
