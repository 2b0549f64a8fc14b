#include "plugins/spank/submit_side.h"

#include <fmt/format.h>

#include "launcher/cluster/load_job.h"
#include "launcher/plan/launch_plan.h"
#include "runtime/base/trust.h"

namespace shardrun::spank {

using base::Code;
using base::Error;
using base::Result;

namespace {

// Pyxis lets the image's variables win over those that are not named to it, and starts in the image's folder unless it
// is told another.
void add_pyxis_options(const spec::JobSpec& spec, const std::string& working_directory,
                       std::map<std::string, std::string>& wanted) {
  const std::string prefix = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_";
  std::string mounts = working_directory + ":" + working_directory, names;
  for (const std::string& text : spec.container.mounts) {
    const spec::Mount mount = spec::parse_mount(text);
    mounts += "," + mount.source + ":" + mount.target + (mount.read_only ? ":ro" : "");
  }
  auto variables = contract::child_environment({}, {}, [](const std::string&) { return std::nullopt; });
  for (const auto& [name, value] : spec.environment) variables[name];
  for (const auto& [name, value] : variables) names += (names.empty() ? "" : ",") + name;
  wanted[prefix + "image"] = spec.container.image;
  wanted[prefix + "mounts"] = mounts;
  wanted[prefix + "workdir"] = working_directory;
  wanted[prefix + "env"] = names;
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
  for (const auto& [section, owner] :
       {std::pair("fault_tolerance", "nobody supervises the tasks of a plain srun"),
        std::pair("precompile", "nothing is compiled before a plain srun"),
        std::pair("logging", "the output of a plain srun is srun's")}) {
    if (!spec.origins.contains(section)) continue;
    lines.push_back(fmt::format("{}: [{}] has no effect: {}; `shardrun submit` does it", spec.origin(section),
                                section, owner));
  }
  return lines;
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
  if (spec.container.is_given()) add_pyxis_options(spec, working_directory, wanted);
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
