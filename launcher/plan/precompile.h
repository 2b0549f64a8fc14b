// What [precompile] means for a command program: one cache for all nodes, and a job that fills it before training.
//
// The compile job is the same job.toml with overrides, so it has a run directory, logs and a record like any other
// run. It starts one process per node, with all CPUs that the node's ranks will have; what it runs may start ranks of its
// own.
// Thread rule: pure functions.
#pragma once

#include <map>
#include <string>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Returns whether the job has a compile job that goes first.
bool compiles_by_command(const spec::JobSpec& spec);

// Returns the variables that point compilers at `cache`, an absolute folder. Sources of the names: AWS Neuron's
// "Persistent Cache" and "TorchNeuron environment variables", PyTorch's "Compile Time Caching Configuration" and
// cpp_extension, Triton's knobs, the CUDA programming guide, JAX's "Persistent compilation cache".
std::map<std::string, std::string> cache_variables(const std::string& cache);

// Returns the plan of the compile job, made from the plan of the job that it is for: without id and run directory,
// with the overrides that make job.toml the compile job. Its batch is the job's own, because what is compiled
// depends on it.
record::LaunchPlan compile_plan(const spec::JobSpec& spec, const record::LaunchPlan& job);

// kInvalid, "origin: what; mend", when the spec's environment keeps a compiler away from the cache.
base::Result<void> check_cache_environment(const spec::JobSpec& spec);

}  // namespace shardrun::launcher
