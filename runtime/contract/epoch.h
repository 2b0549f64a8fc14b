// Epoch: which attempt of a run may write; it is the fencing token of a run directory.
//
// The file `epoch` holds the number of the newest attempt and is replaced by an atomic rename before the attempt's
// first process starts. Whoever is about to publish something in the name of an older attempt reads a larger number
// and must not. docs/decisions/0015 says what this covers and what the checkpoint store does beyond it.
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
// Refuses (kRefused) when a later attempt has begun, naming both. A run without the file has no rule to break.
base::Result<void> check_epoch(const record::RunDir& run, int attempt);

// Returns [checkpoint] directory as an absolute path.
std::string checkpoint_directory(const spec::JobSpec& spec, const record::LaunchPlan& plan);
// Returns where an attempt's checkpoints grow until they are published: a folder inside the checkpoint directory
// that only the attempt's conductor makes. Without it nothing can be written or renamed from it: that is the fence.
std::string checkpoint_stage(const std::string& checkpoint_directory, const std::string& run_id, int attempt);
// Takes the stages of all other attempts away and makes this one's, with the directory around it. Error: kIo.
base::Result<void> fence_checkpoints(const std::string& checkpoint_directory, const std::string& run_id,
                                     int attempt);

}  // namespace shardrun::contract
