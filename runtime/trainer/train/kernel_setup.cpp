#include "runtime/trainer/train/kernel_setup.h"

#include <cstdio>

#include <fmt/format.h>

#include "runtime/contract/compile_cache.h"
#include "runtime/trainer/compile/prepare_gpu.h"
#include "runtime/trainer/train/spec_options.h"

namespace shardrun::train {
namespace {

using base::Code;
using base::Error;

// [precompile] workers are of a node: its ranks share them, the first ones having one more.
int workers_of(const spec::PrecompileSpec& spec, const KernelSetup& setup) {
  if (spec.workers == 0) return setup.cpus;
  return spec.workers / setup.ranks_on_node + (setup.local_rank < spec.workers % setup.ranks_on_node ? 1 : 0);
}

// What [precompile] says, which must be right, else what the GPU is.
Result<std::string> gpu_architecture(const spec::JobSpec& spec, const std::string& of_gpu) {
  const std::string& named = spec.precompile.architecture;
  if (named.empty() && of_gpu.empty()) {
    return Error(Code::kInvalid, fmt::format("{}: no GPU here says what to compile for; write architecture = "
                                             "\"sm_90\", or what the job's GPUs are",
                                             spec.origin("precompile")));
  }
  if (!named.empty() && !of_gpu.empty() && named != of_gpu) {
    return Error(Code::kInvalid, fmt::format("{}: architecture = \"{}\", but this node's GPU is of {}; write "
                                             "that, or remove the key",
                                             spec.origin("precompile.architecture"), named, of_gpu));
  }
  return named.empty() ? of_gpu : named;
}

}  // namespace

std::string JobKernels::label() const {
  const std::string count = std::to_string(prepared.kernels.size());
  return architecture.empty() ? count : count + " for " + architecture;
}

std::vector<kernels::KernelShape> kernel_shapes(const spec::JobSpec& spec, kernels::Target target) {
  return kernel_shapes(plan::network_of(spec), spec.precision.parameters, spec.sharding.tensor_parallel,
                       target);
}

Result<JobKernels> compile_kernels(const spec::JobSpec& spec, const KernelSetup& setup) {
  const auto folder = contract::compile_cache_folder(spec, setup.working_directory);
  if (!folder) return folder.error();
  const auto cache = compile::KernelCache::open(*folder);
  if (!cache) return cache.error();
  compile::PrepareOptions options;
  options.workers = workers_of(spec.precompile, setup);
  options.forget_failures = setup.forget_failures;
  options.notice = [](const std::string& text) { fmt::print(stderr, "shardrun: {}\n", text); };

  if (spec.resources.device == spec::DeviceKind::kCpu) {
    const auto compiler = compile::CxxCompiler::find();
    if (!compiler) return compiler.error();
    auto done = compile::prepare(*cache, *compiler, kernel_shapes(spec, kernels::Target::kCpu), options);
    if (!done) return std::move(done).error();
    return JobKernels{std::move(*done), ""};
  }
  auto architecture = gpu_architecture(spec, setup.architecture);
  if (!architecture) return std::move(architecture).error();
  auto done = compile::prepare_for_gpu(*cache, compile::Nvrtc::find(*architecture), *architecture,
                                       kernel_shapes(spec, kernels::Target::kCuda), options);
  if (!done) return std::move(done).error();
  return JobKernels{std::move(*done), std::move(*architecture)};
}

}  // namespace shardrun::train
