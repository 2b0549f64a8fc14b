#include "launcher/plan/precompile.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/spec/toml_text.h"

namespace shardrun::launcher {
namespace {

constexpr int kMostCpus = 4096;  // CPUs of one rank, as [resources] allows them
constexpr const char* kSuffix = "-precompile";
constexpr size_t kLongestName = 64;

// A compile job needs no spares and has nothing to lose: its nodes are checked when the job itself starts.
void add_one_plain_attempt(record::LaunchPlan& plan) {
  for (const char* assignment : {"fault_tolerance.requeue=false", "fault_tolerance.spares=0",
                                 "fault_tolerance.min_nodes=0", "fault_tolerance.preflight=false"})
    plan.overrides.emplace_back(assignment);
}

}  // namespace

bool compiles_by_command(const spec::JobSpec& spec) {
  return spec.precompile.enabled && !spec.program.command.empty() && !spec.precompile.command.empty();
}

std::map<std::string, std::string> cache_variables(const std::string& cache) {
  return {{"SHARDRUN_COMPILE_CACHE", cache},
          {"NEURON_COMPILE_CACHE_URL", cache + "/neuron"},
          {"TORCH_NEURONX_NEFF_CACHE_DIR", cache + "/neff"},
          {"TORCHINDUCTOR_CACHE_DIR", cache + "/inductor"},
          {"TRITON_CACHE_DIR", cache + "/triton"},
          {"TORCH_EXTENSIONS_DIR", cache + "/torch_extensions"},
          {"PYTORCH_KERNEL_CACHE_PATH", cache + "/pytorch_kernels"},
          {"CUDA_CACHE_PATH", cache + "/cuda"},
          {"JAX_COMPILATION_CACHE_DIR", cache + "/jax"}};
}

record::LaunchPlan compile_plan(const spec::JobSpec& spec, const record::LaunchPlan& job) {
  record::LaunchPlan plan = job;
  plan.id.clear();
  plan.run_directory.clear();
  plan.name = job.name.substr(0, kLongestName - std::string_view(kSuffix).size()) + kSuffix;
  plan.nodes = spec.precompile.nodes > 0 ? spec.precompile.nodes : job.nodes;
  plan.ranks_per_node = 1;
  plan.cpus_per_rank =
      static_cast<int>(std::min<int64_t>(kMostCpus, int64_t{job.ranks_per_node} * job.cpus_per_rank));
  for (const std::string& assignment :
       {"name=" + spec::toml_string(plan.name), fmt::format("resources.nodes={}", plan.nodes),
        std::string("resources.ranks_per_node=1"),
        fmt::format("resources.cpus_per_rank={}", plan.cpus_per_rank),
        "program.command=" + spec::toml_array(spec.precompile.command),
        std::string("precompile.enabled=false")}) {
    plan.overrides.push_back(assignment);
  }
  add_one_plain_attempt(plan);
  const int workers = spec.precompile.workers > 0 ? spec.precompile.workers : plan.cpus_per_rank;
  for (const char* name : {"SHARDRUN_PRECOMPILE_WORKERS", "TORCHINDUCTOR_COMPILE_THREADS", "MAX_JOBS"})
    plan.variables[name] = std::to_string(workers);
  plan.variables["SHARDRUN_TRAINING_NODES"] = std::to_string(job.nodes);
  plan.variables["SHARDRUN_TRAINING_RANKS_PER_NODE"] = std::to_string(job.ranks_per_node);
  return plan;
}

base::Result<void> check_cache_environment(const spec::JobSpec& spec) {
  if (!compiles_by_command(spec)) return {};
  const auto flags = spec.environment.find("NEURON_CC_FLAGS");
  if (flags == spec.environment.end() || flags->second.kind != spec::EnvironmentValue::Kind::kLiteral ||
      flags->second.text.find("--cache_dir") == std::string::npos) {
    return {};
  }
  return base::Error(
      base::Code::kInvalid,
      fmt::format("{}: --cache_dir in NEURON_CC_FLAGS beats the cache of [precompile]; remove it, or "
                  "write its folder as [precompile] cache",
                  spec.origin("environment.NEURON_CC_FLAGS")));
}

}  // namespace shardrun::launcher
