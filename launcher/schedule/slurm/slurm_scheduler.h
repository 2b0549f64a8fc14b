// The slurm scheduler: runs all ranks of an attempt as one srun step with --mpi=pmix, one task per rank.
//
// It runs inside an allocation (the batch step, or salloc). srun's own words are parsed only for ranks whose
// supervisor was killed; everything else comes from the exit files that the supervisors leave in the run directory.
#pragma once

#include <memory>

#include "launcher/schedule/scheduler.h"

namespace shardrun::launcher {

std::unique_ptr<Scheduler> make_slurm_scheduler();

}  // namespace shardrun::launcher
