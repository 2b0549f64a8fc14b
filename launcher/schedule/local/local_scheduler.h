// The local scheduler: all ranks of the job on this machine, with a PMIx server inside this process.
//
// The job's nodes are folded onto this machine: a spec with 4 nodes of 2 ranks runs as one node with 8 ranks, and
// the ranks see node_count 1. That matches the machine, and it keeps LOCAL_RANK usable as a device number.
//
// Every process that is created below a rank is ours (PR_SET_CHILD_SUBREAPER), also one that called setsid or whose
// parent died; none outlives run(). The ranks' supervisors die with this process, unless the job has a conductor_timeout.
//
// PMIx 4.2's server can be started once in a process: a second LocalScheduler in the same process is refused.
#pragma once

#include <memory>

#include "launcher/schedule/scheduler.h"

namespace shardrun::launcher {

std::unique_ptr<Scheduler> make_local_scheduler();

}  // namespace shardrun::launcher
