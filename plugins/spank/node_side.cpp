#include "plugins/spank/node_side.h"

#include <fmt/format.h>

#include "launcher/cluster/load_job.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/plan/precompile.h"
#include "plugins/spank/submit_side.h"
#include "runtime/contract/compile_cache.h"
#include "runtime/contract/master_port.h"

namespace shardrun::spank {
namespace {

using base::Code;
using base::Error;
using base::Result;

Result<record::LaunchPlan> solve(const spec::JobSpec& spec, const Step& step,
                                 const contract::EnvironmentLookup& environment) {
  launcher::PlanContext context;
  context.id = fmt::format("{}.{}", step.job, step.step);
  context.scheduler = "slurm";
  context.working_directory = step.working_directory;
  if (launcher::compiles_by_command(spec)) {
    ASSIGN_OR_RETURN(context.cache,
                     contract::compile_cache_folder(spec, step.working_directory, environment));
  }
  return launcher::solve_launch_plan(spec, context);
}

// All tasks must arrive at the same port and none can ask another, so nobody checks beforehand whether it is free;
// the rank that will listen on it checks now.
Result<uint16_t> meeting_port(const contract::RankEnv& env, const Step& step, bool is_own) {
  const uint64_t seed = (uint64_t{step.job} << 24) + step.step * 64 + step.restarts;
  auto port = contract::choose_port(contract::ephemeral_ports(), seed, [](uint16_t) { return true; });
  if (!port || !is_own || env.global_rank != 0 || contract::can_bind(*port)) return port;
  return Error(Code::kIo,
               fmt::format("port {} of {}, at which the ranks were to meet, is in use; start the step "
                           "again, for each has another port, or write MASTER_PORT in [environment]",
                           *port, env.node_name));
}

Result<void> check_place(const spec::JobSpec& spec, const contract::RankEnv& env) {
  if (auto counted = check_counts(spec, env.node_count, env.world_size); !counted)
    return env.global_rank == 0 ? std::move(counted).error() : Error(Code::kInvalid, "");
  if (env.local_world_size == spec.resources.ranks_per_node) return {};
  return Error(Code::kInvalid,
               fmt::format("{}: {} tasks run on {}, and the job has {} ranks on each node; write srun "
                           "--ntasks-per-node={}",
                           spec.origin("resources.ranks_per_node"), env.local_world_size, env.node_name,
                           spec.resources.ranks_per_node, spec.resources.ranks_per_node));
}

// A binding that the user gave to srun is obeyed.
rank::Binding binding_of(const contract::RankEnv& env, const record::LaunchPlan& plan,
                         const contract::EnvironmentLookup& environment) {
  const auto told = environment("SLURM_CPU_BIND_TYPE");
  if (told && !told->empty() && *told != "none") return {};
  return rank::choose_binding(env.local_rank, env.local_world_size, plan.cpus_per_rank);
}

}  // namespace

std::string first_host(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t close = list.find(']', i);
    const size_t end = std::min(list.find_first_of("-,]", i), list.size());
    host += list.substr(i + 1, end - i - 1);
    if (close == std::string_view::npos) break;
    i = close;
  }
  return host;
}

Result<Task> prepare_task(const std::string& path, const Step& step,
                          const contract::EnvironmentLookup& environment) {
  ASSIGN_OR_RETURN(auto loaded, launcher::load_spec(path, {}));
  const spec::JobSpec& spec = loaded.spec;
  ASSIGN_OR_RETURN(auto env, contract::read_slurm_place(environment));
  RETURN_IF_ERROR(check_place(spec, env));
  ASSIGN_OR_RETURN(auto plan, solve(spec, step, environment));
  ASSIGN_OR_RETURN(auto port, meeting_port(env, step, !spec.environment.contains("MASTER_PORT")));
  env.master_addr =
      contract::master_address(env.node_count, first_host(environment("SLURM_STEP_NODELIST").value_or("")));
  env.master_port = port;
  env.attempt = static_cast<int>(step.restarts);

  Task task;
  ASSIGN_OR_RETURN(task.variables, contract::command_environment(env, plan, spec, environment));
  task.variables["SHARDRUN_ATTEMPT"] = std::to_string(env.attempt);
  task.variables["SHARDRUN_MASTER_ADDR"] = env.master_addr;
  task.variables["SHARDRUN_MASTER_PORT"] = std::to_string(env.master_port);
  task.binding = binding_of(env, plan, environment);
  return task;
}

}  // namespace shardrun::spank
