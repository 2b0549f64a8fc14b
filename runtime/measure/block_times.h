// Block times: how long a rank computes one block of the built-in trainer, forward and backward, by the trainer's own
// model code on made-up tokens.
//
// Every rank measures at once, as ranks compute at once; seconds are of CPU (contract/calibration.h says why).
// Thread rule: one thread, the same calls on all ranks.
#pragma once

#include <vector>

#include "runtime/record/calibration.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::measure {

// Shapes from small to large, whose times what stands between them follows from.
std::vector<record::StepProbe> probes_to_make();

// Fills in the seconds, pooled over all ranks. `cpus`: OpenMP threads of this rank.
base::Result<void> time_blocks(comm::Communicator& world, int cpus, record::StepProbe& probe);

}  // namespace shardrun::measure
