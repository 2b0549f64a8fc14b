// Loading prepared kernels into this process.
//
// Thread rule: one thread calls, before others run ops.
#pragma once

#include <span>

#include "runtime/base/result.h"
#include "runtime/trainer/compile/prepare.h"

namespace shardrun::compile {

// Loads the bytes that were checked, from memory that no file system and no other process can change, and installs
// what they hold (kernels/specialised.h) for the rest of the process. kCorrupt when one is no kernel.
Result<void> load(std::span<const kernels::KernelCode> kernels);

}  // namespace shardrun::compile
