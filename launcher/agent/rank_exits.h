// How the ranks of an attempt ended: what the scheduler saw, and what their supervisors wrote.
//
// Thread rule: free function.
#pragma once

#include <vector>

#include "launcher/schedule/scheduler.h"
#include "runtime/record/run_dir.h"
#include "runtime/record/run_record.h"

namespace shardrun::launcher {

// What each rank's supervisor wrote is more exact than what the scheduler saw, but the latter is all there is for a
// rank whose supervisor was killed.
std::vector<record::RankExit> merge_exits(const record::RunDir& paths, int attempt, int world_size,
                                          const StepOutcome& seen);

}  // namespace shardrun::launcher
