// What a rank reads first: who it is, the plan of its attempt, and the job's spec.
//
// Thread rule: free function; reads the process environment.
#pragma once

#include "runtime/base/result.h"
#include "runtime/contract/rank_env.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::contract {

using base::Result;

struct RankJob {
  RankEnv env;
  record::LaunchPlan plan;
  spec::JobSpec spec;
};

// Errors: kRefused when this node does not see the run directory, or a later attempt of the run has begun; else those
// of read_rank_env, parse_launch_plan and load_job_spec.
Result<RankJob> read_rank_job();

}  // namespace shardrun::contract
