#include "plugins/spank/submit_side.h"

#include <unistd.h>

#include <set>

#include <fmt/format.h>

#include "launcher/cluster/load_job.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/plan/precompile.h"
#include "plugins/spank/option.h"
#include "runtime/base/trust.h"
#include "runtime/contract/compile_cache.h"
#include "runtime/contract/container_runtime.h"

namespace shardrun::spank {

using base::Code;
using base::Error;
using base::Result;

namespace {

// Returns the cache of compiled code that the ranks are told of; "" where there is none.
std::string cache_of(const spec::JobSpec& spec, const contract::EnvironmentLookup& environment,
                     const std::string& working_directory) {
  if (!launcher::compiles_by_command(spec)) return "";
  auto folder = contract::compile_cache_folder(spec, working_directory, environment);
  return folder ? std::move(folder).value() : "";
}

// Pyxis lets the image's variables win over those that are not named to it, starts in the image's folder unless it is told
// another, and starts nothing where a folder to be mounted is missing.
void add_pyxis_options(const spec::JobSpec& spec, const contract::EnvironmentLookup& environment,
                       const std::string& working_directory, std::map<std::string, std::string>& wanted) {
  std::vector<std::string> folders = {working_directory};
  const std::string cache = cache_of(spec, environment, working_directory);
  if (!cache.empty() && ::access(cache.c_str(), F_OK) == 0) folders.push_back(cache);
  std::set<std::string> names = {"SHARDRUN_ATTEMPT", "SHARDRUN_MASTER_ADDR", "SHARDRUN_MASTER_PORT",
                                 "SHARDRUN_RANK_BATCH", "SHARDRUN_LAST_MICRO_BATCH"};
  for (const auto& [name, value] :
       contract::child_environment({}, {}, [](const std::string&) { return std::nullopt; }))
    names.insert(name);
  if (!cache.empty())
    for (const auto& [name, value] : launcher::cache_variables(cache)) names.insert(name);
  for (const auto& [name, value] : spec.environment) names.insert(name);
  for (const auto& [end, value] : contract::pyxis_words(spec, working_directory, std::move(folders), names))
    wanted["SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_" + end] = value;
}

}  // namespace

Result<spec::JobSpec> check_job(const std::string& path) {
  ASSIGN_OR_RETURN(auto loaded, launcher::load_spec(path, {}));
  RETURN_IF_ERROR(base::refuse_if_others_write(path));  // the nodes read it again
  const spec::JobSpec& spec = loaded.spec;
  if (!spec.program.trainer.empty()) {
    return Error(Code::kInvalid,
                 fmt::format("{}: srun starts the program that stands behind its options, not the built-in "
                             "trainer; use `shardrun run`, or write [program] command",
                             spec.origin("program.trainer")));
  }
  const spec::ContainerRuntime runtime = spec.container.runtime;
  if (runtime != spec::ContainerRuntime::kAuto && runtime != spec::ContainerRuntime::kPyxis) {
    return Error(
        Code::kInvalid,
        fmt::format("{}: srun starts a program in an image through pyxis only; write runtime = \"pyxis\" or "
                    "\"auto\", or use `shardrun submit`",
                    spec.origin("container.runtime")));
  }
  launcher::PlanContext context;
  context.scheduler = "slurm";
  ASSIGN_OR_RETURN(auto plan, launcher::solve_launch_plan(spec, context));
  return std::move(loaded.spec);
}

std::vector<std::string> sections_without_effect(const spec::JobSpec& spec) {
  std::vector<std::string> lines;
  constexpr const char* kPlaces[][3] = {
      {"resources.exclude", "[resources] exclude", "srun takes it on its command line alone"},
      {"slurm", "[slurm]", "a plain srun is told these options by its user"},
      {"program.setup", "[program] setup", "srun runs what stands behind its options"},
      {"program.snapshot", "[program] snapshot", "a plain srun runs where it was started"},
      {"container.arguments", "[container] arguments", "pyxis has no arguments of its own"},
      {"fault_tolerance", "[fault_tolerance]", "nobody supervises the tasks of a plain srun"},
      {"precompile", "[precompile]", "nothing is compiled before a plain srun"},
      {"logging", "[logging]", "the output of a plain srun is srun's"}};
  for (const auto& [key, name, reason] : kPlaces) {
    if (!spec.origins.contains(key)) continue;
    lines.push_back(
        fmt::format("{}: {} has no effect: {}; `shardrun submit` does it", spec.origin(key), name, reason));
  }
  return lines;
}

Result<void> check_here(const spec::JobSpec& spec, const contract::EnvironmentLookup& environment,
                        const std::string& working_directory) {
  const std::string cache = cache_of(spec, environment, working_directory);
  if (!cache.empty()) {
    if (auto ours = base::refuse_if_others_make(cache); !ours)
      return std::move(ours).error().context(spec.origin("precompile.cache") + ": compiled code is run");
  }
  if (!spec.container.is_given()) return {};
  if (!environment(kPyxisStepVariable))
    return Error(Code::kInvalid, spec.origin("container") +
                                     ": this srun has no pyxis to run the image with; ask the administrator "
                                     "for it, or use `shardrun submit` with another runtime");
  for (const std::string& folder : {working_directory, cache})
    if (!spec::can_be_mounted(folder))
      return Error(Code::kInvalid,
                   fmt::format("{}: {} cannot be mounted in a container; use a path without : and ,",
                               spec.origin("container"), folder));
  return {};
}

std::map<std::string, std::string> srun_defaults(const spec::JobSpec& spec,
                                                 const contract::EnvironmentLookup& environment,
                                                 const std::string& working_directory) {
  const spec::ResourcesSpec& resources = spec.resources;
  std::map<std::string, std::string> wanted = {
      {"SLURM_NTASKS_PER_NODE", std::to_string(resources.ranks_per_node)},
      {"SRUN_CPUS_PER_TASK", std::to_string(resources.cpus_per_rank)},
      {"SLURM_CPU_BIND", "none"},
      {"SLURM_DISTRIBUTION", "block"},
      {"SLURM_KILL_BAD_EXIT", "1"},
      {"SLURM_MPI_TYPE", "pmix"},
  };
  if (!environment("SLURM_JOB_ID")) {
    wanted["SLURM_JOB_NAME"] = spec.name;
    wanted["SLURM_JOB_NUM_NODES"] = std::to_string(resources.nodes);
    if (resources.time_limit) {
      const int64_t seconds = resources.time_limit->count();
      wanted["SLURM_TIMELIMIT"] = fmt::format("{}:{:02}", seconds / 60, seconds % 60);
    }
    if (!resources.partition.empty()) wanted["SLURM_PARTITION"] = resources.partition;
    if (!resources.account.empty()) wanted["SLURM_ACCOUNT"] = resources.account;
    if (!resources.constraint.empty()) wanted["SLURM_CONSTRAINT"] = resources.constraint;
    if (resources.exclusive) wanted["SLURM_EXCLUSIVE"] = "exclusive";
    if (resources.gpus_per_node > 0) wanted["SLURM_GPUS_PER_NODE"] = std::to_string(resources.gpus_per_node);
  }
  if (spec.container.is_given()) add_pyxis_options(spec, environment, working_directory, wanted);
  std::erase_if(wanted, [&](const auto& item) { return environment(item.first).has_value(); });
  return wanted;
}

Result<void> check_counts(const spec::JobSpec& spec, int64_t nodes, int64_t tasks) {
  const spec::ResourcesSpec& resources = spec.resources;
  if (nodes == resources.nodes && tasks == int64_t{resources.nodes} * resources.ranks_per_node) return {};
  return Error(
      Code::kInvalid,
      fmt::format("{}: the job has {} nodes × {} ranks, and this step has {} tasks on {} nodes; write srun "
                  "-N{} --ntasks-per-node={} in an allocation that has them, or change [resources]",
                  spec.origin("resources.nodes"), resources.nodes, resources.ranks_per_node, tasks, nodes,
                  resources.nodes, resources.ranks_per_node));
}

}  // namespace shardrun::spank
