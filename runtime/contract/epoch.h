// Epoch: which attempt of a run may write; it is the fencing token of a run directory.
//
// An attempt's number is one more than that of any before it; launcher/agent/conductor_lock lets only one conductor have it,
// who then makes the folder attempt_<n>. The file `epoch` holds the number of the newest attempt and is replaced by an atomic rename
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
// Returns the largest number for which there is a folder of an attempt, or which `epoch` has; -1 before the first. kIo.
base::Result<int> newest_attempt(const record::RunDir& run);
// Makes the folder of an attempt, which must not exist. Does not write `epoch`. Error: kIo.
base::Result<void> make_attempt(const record::RunDir& run, int attempt);
// Refuses (kRefused) when a later attempt has begun, naming both. A run without the file has no rule to break.
base::Result<void> check_epoch(const record::RunDir& run, int attempt);

// Returns [checkpoint] directory as an absolute path.
std::string checkpoint_directory(const spec::JobSpec& spec, const record::LaunchPlan& plan);
// Returns where an attempt's checkpoints grow until they are published: a folder inside the checkpoint directory
// that only the attempt's conductor makes. Without it nothing can be written or renamed from it: that is the fence.
std::string checkpoint_stage(const std::string& checkpoint_directory, const std::string& run_id, int attempt);
// Makes the attempt's stage, with the directory around it, and takes the stages of the run's earlier attempts and of
// other runs away, so that nothing is left of them, on a file server either. kRefused when a later attempt of the run has
// begun: nothing of that one is touched, and this attempt has no stage. kIo, also when somebody keeps files in such a stage.
base::Result<void> fence_checkpoints(const record::RunDir& run, const std::string& checkpoint_directory,
                                     const std::string& run_id, int attempt);

}  // namespace shardrun::contract
