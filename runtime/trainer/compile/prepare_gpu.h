// The kernels of a job for NVIDIA GPUs, on nodes with NVRTC and on nodes without.
//
// A node without it has what was compiled elsewhere, on the head node or by a node that has it: the cache remembers which
// compilers filled it, and so how their entries are named.
// Thread rule: as prepare().
#pragma once

#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/trainer/compile/nvrtc.h"
#include "runtime/trainer/compile/prepare.h"

namespace shardrun::compile {

// prepare() with `found`, what Nvrtc::find(architecture) gave. Where that is kNotFound, the kernels of one compiler that
// the cache has all of; else kNotFound with the mend, or, if others are compiling, theirs.
Result<Preparation> prepare_for_gpu(const KernelCache& cache, const Result<Nvrtc>& found,
                                    const std::string& architecture,
                                    std::span<const kernels::KernelShape> shapes,
                                    const PrepareOptions& options);

}  // namespace shardrun::compile
