#include "launcher/plan/launch_plan.h"

#include <fmt/format.h>

#include "launcher/plan/batch.h"
#include "runtime/contract/mesh.h"

namespace shardrun::launcher {

base::Result<contract::LaunchPlan> solve_launch_plan(const contract::JobSpec& spec,
                                                     const PlanContext& context) {
  const int64_t world = int64_t{spec.resources.nodes} * spec.resources.ranks_per_node;
  if (world > contract::LaunchPlan::kLargestWorld) {
    return base::Error(
        base::Code::kInvalid,
        fmt::format("{}: {} nodes × {} ranks are {} ranks; at most {} work", spec.origin("resources.nodes"),
                    spec.resources.nodes, spec.resources.ranks_per_node, world,
                    contract::LaunchPlan::kLargestWorld));
  }
  auto mesh = contract::solve_mesh(spec, world, spec.resources.ranks_per_node);
  if (!mesh) return std::move(mesh).error();
  auto batch = solve_batch(spec, mesh->data_parallel());
  if (!batch) return std::move(batch).error();
  contract::LaunchPlan plan;
  plan.name = spec.name;
  plan.id = context.id;
  plan.scheduler = context.scheduler;
  plan.run_directory = context.run_directory;
  plan.working_directory = context.working_directory;
  plan.rank_program = context.rank_program;
  plan.plugin_directory = context.plugin_directory;
  plan.overrides = context.overrides;
  plan.nodes = spec.resources.nodes;
  plan.ranks_per_node = spec.resources.ranks_per_node;
  plan.cpus_per_rank = spec.resources.cpus_per_rank;
  plan.batch = *batch;
  return plan;
}

}  // namespace shardrun::launcher
