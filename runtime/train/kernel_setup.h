// The specialised kernels of a job: which they are, having them compiled, and running with them.
//
// Thread rule: one thread calls, before others run ops.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/compile/prepare.h"
#include "runtime/contract/job_spec.h"

namespace shardrun::train {

using base::Result;

// This caller's part of [precompile] on its node.
struct KernelSetup {
  std::string working_directory;  // where a relative cache of the spec starts
  int local_rank = 0, ranks_on_node = 1, cpus = 1;
  bool forget_failures = false;  // compile again what did not compile before
};

// Of a trainer's job, whose model the spec describes: nothing is run or allocated to know.
std::vector<kernels::KernelShape> kernel_shapes(const contract::JobSpec& spec);

// Every rank of the job calls it; on return all kernels are in the cache. Errors as compile::prepare's.
Result<compile::Preparation> compile_kernels(const contract::JobSpec& spec, const KernelSetup& setup);

}  // namespace shardrun::train
