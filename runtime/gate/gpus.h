// The GPUs of this node: which ones there are, and what the driver says is wrong with them.
//
// Asks nvidia-smi, as a program of its own: a driver that hangs holds up a child that can be abandoned, not a rank.
// What a driver does not know is left out.
//
// Thread rule: free functions.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/record/preflight.h"

namespace shardrun::gate {

// kNotFound without nvidia-smi; kTimeout and kIo with its words.
base::Result<std::vector<record::GpuFacts>> find_gpus();

// `csv` has lines of "index, name, UUID, uncorrected memory errors since the driver's start, hardware slowdown", of
// which the last three may be absent. `rows` has lines of "UUID, rows to remap pending, remapping failed".
std::vector<record::GpuFacts> parse_gpus(std::string_view csv, std::string_view rows = {});

}  // namespace shardrun::gate
