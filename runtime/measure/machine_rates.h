// Machine rates: matrix products, memory and the optimizer of one rank while all ranks are busy.
//
// Thread rule: one thread, the same calls on all ranks.
#pragma once

#include <vector>

#include "runtime/record/calibration.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::measure {

// Times square products by the trainer's own linear layer, a few sizes in bf16 and fp32. `cpus` is the number of
// OpenMP threads of this rank.
base::Result<std::vector<record::GemmRate>> time_products(comm::Communicator& world, int cpus);
// Returns the bytes read and written a second by a copy that fits in no cache.
base::Result<record::Spread> time_memory(comm::Communicator& world, int cpus);
// Returns the seconds of the optimizer's update per parameter, with the gradient's norm and the conversion to bf16.
base::Result<record::Spread> time_update(comm::Communicator& world, int cpus);

}  // namespace shardrun::measure
