// rank_main: what shardrun-rank does, from its environment to its exit code.
//
// Thread rule: call once, from the only thread of the process.
#pragma once

#include <functional>

#include "runtime/contract/heartbeat.h"
#include "runtime/contract/rank_env.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::rank {

// The built-in trainer; runtime/main.cpp passes it in, so that this folder does not depend on it.
using TrainerFunction = std::function<int(const contract::RankEnv&, const spec::JobSpec&,
                                          const record::LaunchPlan&, contract::ProgressPage&)>;

// Reads the rank's environment, plan.json and job.toml, runs the program under a supervisor and ends as the program
// ended. Returns an exit code only when the program could not be started; the reason was printed to stderr.
int run_rank(const TrainerFunction& trainer);

}  // namespace shardrun::rank
