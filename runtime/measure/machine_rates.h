// Machine rates: matrix products, memory and the optimizer, of one rank while all ranks are busy.
//
// Thread rule: one thread, the same calls on all ranks.
#pragma once

#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/contract/calibration.h"

namespace shardrun::measure {

// Square products by the trainer's own linear layer, a few sizes in bf16 and fp32. `cpus`: OpenMP threads of this rank.
base::Result<std::vector<contract::GemmRate>> time_products(comm::Communicator& world, int cpus);
// Bytes read and written a second by a copy that no cache holds.
base::Result<contract::Spread> time_memory(comm::Communicator& world, int cpus);
// The optimizer's update of a parameter, with the gradient's norm and the conversion to bf16.
base::Result<contract::Spread> time_update(comm::Communicator& world, int cpus);

}  // namespace shardrun::measure
