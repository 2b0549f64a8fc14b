#include "runtime/train/kernel_setup.h"

#include <cstdio>

#include <fmt/format.h>

#include "runtime/contract/compile_cache.h"
#include "runtime/train/spec_options.h"

namespace shardrun::train {
namespace {

// [precompile] workers are of a node: its ranks share them, the first ones having one more.
int workers_of(const contract::PrecompileSpec& spec, const KernelSetup& setup) {
  if (spec.workers == 0) return setup.cpus;
  return spec.workers / setup.ranks_on_node + (setup.local_rank < spec.workers % setup.ranks_on_node ? 1 : 0);
}

}  // namespace

std::vector<kernels::KernelShape> kernel_shapes(const contract::JobSpec& spec) {
  return kernel_shapes(network_of(spec), compute_type(spec), spec.sharding.tensor_parallel);
}

Result<compile::Preparation> compile_kernels(const contract::JobSpec& spec, const KernelSetup& setup) {
  const auto folder = contract::compile_cache_folder(spec, setup.working_directory);
  if (!folder) return folder.error();
  const auto cache = compile::KernelCache::open(*folder);
  if (!cache) return cache.error();
  const auto compiler = compile::Compiler::find();
  if (!compiler) return compiler.error();
  compile::PrepareOptions options;
  options.workers = workers_of(spec.precompile, setup);
  options.forget_failures = setup.forget_failures;
  options.notice = [](const std::string& text) { fmt::print(stderr, "shardrun: {}\n", text); };
  return compile::prepare(*cache, *compiler, kernel_shapes(spec), options);
}

}  // namespace shardrun::train
