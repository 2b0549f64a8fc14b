#include "runtime/record/launch_plan.h"

#include <fmt/format.h>

#include "runtime/base/io.h"
#include "runtime/base/json_fields.h"

namespace shardrun::record {
namespace {

// Every number of a plan is used in products: refuse what a solved plan cannot hold.
Result<void> check_sizes(const LaunchPlan& plan) {
  constexpr int64_t kLargest = int64_t{1} << 40;
  if (plan.nodes < 1 || plan.ranks_per_node < 1 || plan.cpus_per_rank < 1 ||
      int64_t{plan.nodes} * plan.ranks_per_node > LaunchPlan::kLargestWorld) {
    return base::Error(base::Code::kCorrupt,
                       "plan.json: nodes, ranks_per_node or cpus_per_rank are out of range");
  }
  for (const int64_t number : {plan.batch.global_batch, plan.batch.micro_batch,
                               plan.batch.gradient_accumulation, plan.batch.data_parallel}) {
    if (number < 0 || number > kLargest) {
      return base::Error(base::Code::kCorrupt,
                         fmt::format("plan.json batch: {} is no number of sequences", number));
    }
  }
  if (!plan.batch.is_possible())
    return base::Error(base::Code::kCorrupt, "plan.json batch: these numbers do not make a batch");
  return {};
}

}  // namespace

void fields(auto& visit, base::Is<LaunchPlan> auto& plan) {
  visit.version(LaunchPlan::kFormatVersion);
  visit("name", plan.name);
  visit("id", plan.id);
  visit.later("identity", plan.identity);
  visit("scheduler", plan.scheduler);
  visit("run_directory", plan.run_directory);
  visit("working_directory", plan.working_directory);
  visit("rank_program", plan.rank_program);
  visit("plugin_directory", plan.plugin_directory);
  visit.later("overrides", plan.overrides);
  visit("nodes", plan.nodes);
  visit("ranks_per_node", plan.ranks_per_node);
  visit("cpus_per_rank", plan.cpus_per_rank);
  visit.derived("world_size", plan.world_size());
  visit.later("variables", plan.variables);
  visit.later("precompile_run", plan.precompile_run);
  visit("batch", plan.batch);
  visit.where_known("rank_output_bytes", plan.rank_output_bytes);
  visit.where_known("trace_launch", plan.trace_launch);
}

std::string to_json(const LaunchPlan& plan) {
  return base::json_of(plan);
}

Result<LaunchPlan> parse_launch_plan(std::string_view text) {
  auto plan = base::parse_fields<LaunchPlan>(text, "plan.json");
  if (plan) RETURN_IF_ERROR(check_sizes(*plan));
  return plan;
}

Result<LaunchPlan> read_plan(const RunDir& run) {
  ASSIGN_OR_RETURN(const auto text, base::read_file(run.plan_json()));
  auto plan = parse_launch_plan(text);
  if (!plan) return std::move(plan).error().context(run.plan_json());
  return plan;
}

}  // namespace shardrun::record
