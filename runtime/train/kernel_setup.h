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
std::vector<kernels::KernelShape> kernel_shapes(const contract::JobSpec& spec, kernels::Target target);

struct JobKernels {
  compile::Preparation cpu, gpu;  // gpu: none without an architecture
  std::string architecture;       // of the GPU's, "sm_90"

  int64_t wanted() const { return static_cast<int64_t>(cpu.kernels.size() + gpu.kernels.size()); }
  int compiled() const { return cpu.compiled + gpu.compiled; }
  double compile_seconds() const { return cpu.compile_seconds + gpu.compile_seconds; }
  double recorded_seconds() const { return cpu.recorded_seconds + gpu.recorded_seconds; }
  // "8 of them for sm_90, ", or nothing.
  std::string of_gpu() const;
};

// Every rank of the job calls it; on return all kernels are in the cache: those of this node's CPUs, and those of the
// GPUs that the job names or has. Errors as compile::prepare's, and those of finding the compilers.
Result<JobKernels> compile_kernels(const contract::JobSpec& spec, const KernelSetup& setup);

}  // namespace shardrun::train
