#include "runtime/train/kernel_setup.h"

#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

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

Result<std::string> kernel_cache_folder(const contract::JobSpec& spec, const std::string& working_directory) {
  const std::string& given = spec.precompile.cache;
  if (!given.empty()) return given.front() == '/' ? given : working_directory + "/" + given;
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home != '/') {
    return base::Error(base::Code::kInvalid,
                       spec.origin("precompile.cache") +
                           ": HOME is not set, so the kernels have no place; write cache = "
                           "\"a folder that all nodes share\"");
  }
  return std::string(home) + "/.cache/shardrun/compile";
}

Result<compile::Preparation> compile_kernels(const contract::JobSpec& spec, const KernelSetup& setup,
                                             bool forget_failures) {
  const auto folder = kernel_cache_folder(spec, setup.working_directory);
  if (!folder) return folder.error();
  const auto cache = compile::KernelCache::open(*folder);
  if (!cache) return cache.error();
  const auto compiler = compile::Compiler::find();
  if (!compiler) return compiler.error();
  compile::PrepareOptions options;
  options.workers = workers_of(spec.precompile, setup);
  options.forget_failures = forget_failures;
  options.notice = [](const std::string& text) { fmt::print(stderr, "shardrun: {}\n", text); };
  return compile::prepare(*cache, *compiler, kernel_shapes(spec), options);
}

}  // namespace shardrun::train
