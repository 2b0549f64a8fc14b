// Turns what srun says about tasks that ended badly into exits of ranks.
//
// Only ranks whose supervisor was itself killed need this; the others leave an exit file. Formats of Slurm 20 to 26:
//   srun: error: n2: task 1: Killed
//   srun: error: n1: tasks 0,2-3: Exited with exit code 1
//   slurmstepd: error: … STEP 3.0 ON n1 CANCELLED AT …        (it was sent SIGTERM or SIGKILL: ends are somebody's doing)
//   … STEP 3.0 ON n1 CANCELLED AT … DUE to SIGNAL Terminated  (the same from 26.05 on; of other signals it means nothing)
//   … STEP 3.0 ON n1 CANCELLED AT … DUE TO NODE FAILURE, …    (what is left is killed)
//   srun: launch/slurm: _step_signal: Terminating StepId=1.0  (by --kill-on-bad-exit: what is left is killed)
//   srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
//   srun: error: Task launch for StepId=2.0 failed on node n5: Communication connection failure
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/record/run_record.h"

namespace shardrun::launcher {

struct SrunMessage {
  std::vector<record::RankExit> exits;  // node, global_rank and exit_code or signal
  bool step_aborted = false;            // Slurm is killing the rest of the step
  bool step_cancelled = false;          // the step was sent SIGTERM or SIGKILL; its ranks may be saving
  std::string unreachable;              // node on which no task could be started; "" for none
};

// Returns nullopt if the line says nothing of the kind. Ranks beyond `world_size` and malformed lists are ignored.
std::optional<SrunMessage> parse_srun_line(std::string_view line, int world_size);

// Parses "0,2-3" → 0 2 3; empty when it is malformed or beyond `limit`.
std::vector<int> parse_task_list(std::string_view text, int limit);

}  // namespace shardrun::launcher
