// What a rank reads first: who it is, the plan of its attempt, and the job's spec.
//
// Thread rule: free functions; read_rank_job reads the process environment.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/contract/rank_env.h"
#include "runtime/record/launch_phases.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_dir.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

using base::Result;

struct RankJob {
  RankEnv env;
  record::LaunchPlan plan;
  spec::JobSpec spec;
};

// kRefused when `node`, on which this process runs, does not see the run directory, or when a later attempt of the run has
// begun; else the errors of parse_launch_plan, and kIo.
Result<record::LaunchPlan> read_plan_of_attempt(const record::RunDir& run, int attempt,
                                                const std::string& node);

// Marks in `phases`, which may be null, when the plan and the spec were read. Errors: those of read_rank_env,
// read_plan_of_attempt and load_job_spec; kRefused when the run directory is seen and cannot be written (a full disk can).
Result<RankJob> read_rank_job(record::LaunchPhases* phases = nullptr);

}  // namespace shardrun::contract
