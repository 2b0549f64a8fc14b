#include "launcher/plan/launch_plan.h"

#include <fmt/format.h>

#include "launcher/plan/batch.h"
#include "launcher/plan/precompile.h"
#include "runtime/base/text.h"
#include "runtime/plan/mesh.h"

namespace shardrun::launcher {

namespace {

// Returns "2 or 4 nodes work", or nothing.
std::string nodes_that_work(const spec::JobSpec& spec) {
  const NearestNodes nearest = nearest_nodes(spec, spec.resources.nodes);
  const int64_t one = nearest.below > 0 ? nearest.below : nearest.above;
  if (one == 0) return "";
  if (nearest.below > 0 && nearest.above > 0) return fmt::format("{} or {} nodes work", one, nearest.above);
  return base::counted(one, "node") + (one == 1 ? " works" : " work");
}

}  // namespace

base::Result<record::LaunchPlan> solve_launch_plan(const spec::JobSpec& spec, const PlanContext& context) {
  const int64_t world = int64_t{spec.resources.nodes} * spec.resources.ranks_per_node;
  if (world > record::LaunchPlan::kLargestWorld) {
    return base::Error(base::Code::kInvalid,
                       fmt::format("{}: {} nodes × {} ranks are {} ranks; at most {} work",
                                   spec.origin("resources.nodes"), spec.resources.nodes,
                                   spec.resources.ranks_per_node, world, record::LaunchPlan::kLargestWorld));
  }
  ASSIGN_OR_RETURN(auto mesh, plan::solve_mesh(spec, world, spec.resources.ranks_per_node));
  auto batch = solve_batch(spec, mesh.readers());
  if (!batch) {
    const std::string mend = nodes_that_work(spec);
    return mend.empty() ? batch.error()
                        : base::Error(batch.error().code(), batch.error().message() + "; " + mend);
  }
  record::LaunchPlan plan;
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
  RETURN_IF_ERROR(check_cache_environment(spec));
  if (compiles_by_command(spec)) plan.variables = cache_variables(context.cache);
  return plan;
}

}  // namespace shardrun::launcher
