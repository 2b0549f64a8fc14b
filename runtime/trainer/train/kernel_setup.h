// The specialised kernels of a job: which they are, having them compiled, and running with them.
//
// Thread rule: one thread calls, before others run ops.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/compile/prepare.h"

namespace shardrun::train {

using base::Result;

// This caller's part of [precompile] on its node.
struct KernelSetup {
  std::string working_directory;  // where a relative cache of the spec starts
  int local_rank = 0, ranks_on_node = 1, cpus = 1;
  bool forget_failures = false;  // compile again what did not compile before
  std::string architecture{};    // of this rank's GPU; empty where none was opened
};

// Of a trainer's job, whose model the spec describes: nothing is run or allocated to know.
std::vector<kernels::KernelShape> kernel_shapes(const spec::JobSpec& spec, kernels::Target target);

struct JobKernels {
  compile::Preparation prepared;
  std::string architecture;  // "sm_90"; empty: they are the CPU's

  // "8 for sm_90", or "7".
  std::string label() const;
};

// Every rank of the job calls it; on return all kernels of the processor that the job trains on are in the cache. kInvalid
// when the job's GPUs are of no architecture that is known, or of another than it says; errors as compile::prepare's, and
// those of finding the compiler.
Result<JobKernels> compile_kernels(const spec::JobSpec& spec, const KernelSetup& setup);

}  // namespace shardrun::train
