// Block times: how long a rank takes to compute one block of the built-in trainer, forward and backward, with the
// trainer's own model code on made-up tokens.
//
// Every rank measures at once, as ranks compute at once; seconds are CPU seconds (record/calibration.h says why).
// Thread rule: one thread, the same calls on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/record/calibration.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::measure {

// Micro-batch, sequence length, hidden, heads, heads of keys and values, ffn, vocabulary.
using ProbeSizes = std::array<int64_t, 7>;
record::StepProbe probe_of(const ProbeSizes& sizes);
// Returns shapes from small to large; the times of the shapes between follow from theirs.
std::vector<record::StepProbe> probes_to_make();

// Fills in the seconds, pooled over all ranks. `cpus` is the number of OpenMP threads of this rank.
base::Result<void> time_blocks(comm::Communicator& world, int cpus, record::StepProbe& probe);

}  // namespace shardrun::measure
