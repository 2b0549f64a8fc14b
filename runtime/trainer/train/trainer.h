// Trainer: the sharded training job of one rank, from rendezvous to the last checkpoint.
//
// Called by shardrun-rank in the process that the supervisor forked for the rank. Prints progress lines to
// stdout (rank 0) and errors to stderr; the supervisor files them. Rank 0 appends one JSON object a step to
// metrics.jsonl and writes summary.json at its end.
#pragma once

#include "runtime/contract/heartbeat.h"
#include "runtime/contract/rank_env.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::train {

// Runs the job; returns the process's exit code (contract/exit_code.h): 0 done, 75 stopped by SIGTERM at a
// step boundary with a checkpoint, 4 when a peer was lost or did not answer, 2 for input only the rank could
// check (no such data file), 1 for anything else. The error was printed to stderr, as one line, before it
// returns. What it is doing is noted in `progress` (progress.h).
int run_trainer(const contract::RankEnv& env, const spec::JobSpec& spec, const record::LaunchPlan& plan,
                contract::ProgressPage& progress);

}  // namespace shardrun::train
