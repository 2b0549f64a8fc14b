// GPUs of this node: which are there, and what the driver says is wrong with them.
//
// Asks nvidia-smi, as a program of its own: a driver that hangs holds up a child that can be given up, not a rank.
// Fields that a driver does not know are left out.
//
// Thread rule: free functions.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/contract/preflight.h"

namespace shardrun::gate {

// kNotFound without nvidia-smi; kTimeout and kIo with its words.
base::Result<std::vector<contract::GpuFacts>> find_gpus();

// Lines of "index, name, uncorrected memory errors since the driver's start, rows to remap pending, remapping failed,
// hardware slowdown", the last four as far as they are there.
std::vector<contract::GpuFacts> parse_gpus(std::string_view csv);

}  // namespace shardrun::gate
