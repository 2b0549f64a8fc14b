#include "runtime/train/kernel_setup.h"

#include <cstdio>

#include <fmt/format.h>

#include "runtime/compile/gpu_kernels.h"
#include "runtime/compile/nvrtc.h"
#include "runtime/contract/compile_cache.h"
#include "runtime/train/spec_options.h"

namespace shardrun::train {
namespace {

// [precompile] workers are of a node: its ranks share them, the first ones having one more.
int workers_of(const contract::PrecompileSpec& spec, const KernelSetup& setup) {
  if (spec.workers == 0) return setup.cpus;
  return spec.workers / setup.ranks_on_node + (setup.local_rank < spec.workers % setup.ranks_on_node ? 1 : 0);
}

// What [precompile] says, else what a job that asks for GPUs finds; empty where there is none to ask.
std::string gpu_architecture(const contract::JobSpec& spec) {
  if (!spec.precompile.architecture.empty() || spec.resources.gpus_per_node == 0)
    return spec.precompile.architecture;
  auto found = compile::gpu_architecture(/*device=*/0);  // a node's GPUs are alike
  return found ? std::move(found).value() : std::string();
}

}  // namespace

std::string JobKernels::of_gpu() const {
  if (architecture.empty()) return "";
  return fmt::format("{} of them for {}, ", gpu.kernels.size(), architecture);
}

std::vector<kernels::KernelShape> kernel_shapes(const contract::JobSpec& spec, kernels::Target target) {
  return kernel_shapes(network_of(spec), compute_type(spec), spec.sharding.tensor_parallel, target);
}

Result<JobKernels> compile_kernels(const contract::JobSpec& spec, const KernelSetup& setup) {
  const auto folder = contract::compile_cache_folder(spec, setup.working_directory);
  if (!folder) return folder.error();
  const auto cache = compile::KernelCache::open(*folder);
  if (!cache) return cache.error();
  compile::PrepareOptions options;
  options.workers = workers_of(spec.precompile, setup);
  options.forget_failures = setup.forget_failures;
  options.notice = [](const std::string& text) { fmt::print(stderr, "shardrun: {}\n", text); };

  JobKernels done;
  const auto compiler = compile::CxxCompiler::find();
  if (!compiler) return compiler.error();
  auto cpu = compile::prepare(*cache, *compiler, kernel_shapes(spec, kernels::Target::kCpu), options);
  if (!cpu) return std::move(cpu).error();
  done.cpu = std::move(*cpu);

  done.architecture = gpu_architecture(spec);
  if (done.architecture.empty()) return done;
  const auto nvrtc = compile::Nvrtc::find(done.architecture);
  if (!nvrtc) return nvrtc.error();
  auto gpu = compile::prepare(*cache, *nvrtc, kernel_shapes(spec, kernels::Target::kCuda), options);
  if (!gpu) return std::move(gpu).error();
  done.gpu = std::move(*gpu);
  return done;
}

}  // namespace shardrun::train
