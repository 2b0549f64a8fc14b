#include "launcher/plan/fewer_nodes.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/plan/batch.h"
#include "runtime/base/text.h"
#include "runtime/plan/mesh.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;
using record::LaunchPlan;
using spec::JobSpec;

// Returns the what of "where: what; mend": where and mend are for a job that has not begun.
std::string what_of(const std::string& refusal) {
  const size_t begin = refusal.find(": ") + 2;
  return refusal.substr(begin, refusal.find("; ") - begin);
}

// Returns "1, 2 or 4 nodes", the largest few below all of them; "" for none.
std::string fitting(const JobSpec& spec, const LaunchPlan& original) {
  constexpr size_t kMost = 4;
  std::vector<int> fit;
  for (int nodes = original.nodes - 1; nodes >= 1 && fit.size() < kMost; --nodes) {
    if (plan_on_nodes(spec, original, nodes)) fit.insert(fit.begin(), nodes);
  }
  if (fit.empty()) return "";
  const int last = fit.back();
  fit.pop_back();
  return fmt::format("{}{}{}", fmt::join(fit, ", "), fit.empty() ? "" : " or ", base::counted(last, "node"));
}

}  // namespace

Result<LaunchPlan> plan_on_nodes(const JobSpec& spec, const LaunchPlan& original, int nodes) {
  LaunchPlan plan = original;
  plan.nodes = nodes;
  ASSIGN_OR_RETURN(auto mesh, plan::solve_mesh(spec, plan.world_size(), plan.ranks_per_node));
  JobSpec same_step = spec;
  if (!spec.has_batch()) {
    ASSIGN_OR_RETURN(plan.batch, solve_batch(spec, mesh.readers()));
    return plan;
  }
  same_step.batch.global_batch = original.batch.global_batch;
  same_step.batch.gradient_accumulation.reset();
  same_step.batch.scaling = spec::Scaling::kStrong;
  ASSIGN_OR_RETURN(plan.batch, solve_batch(same_step, mesh.readers()));
  return plan;
}

Result<LaunchPlan> plan_on_fewer(const JobSpec& spec, const LaunchPlan& original, int left,
                                 const PlanCheck& check) {
  const int fewest = spec::fewest_nodes(spec.fault_tolerance, original.nodes);
  const std::string are_left =
      left == 0 ? "no node is left" : base::counted(left, "node") + (left == 1 ? " is" : " are") + " left";
  if (left < fewest)
    return Error(Code::kRefused,
                 fmt::format("{} of {}, and the job needs {}", are_left, original.nodes, fewest));
  std::string reason;  // why it does not work on the largest number
  for (int nodes = std::min(left, original.nodes - 1); nodes >= fewest; --nodes) {
    auto plan = plan_on_nodes(spec, original, nodes);
    const auto checked = plan && check ? check(*plan) : Result<void>();
    if (plan && checked) return plan;
    if (!reason.empty()) continue;
    reason =
        fmt::format("on {}: {}", nodes, plan ? checked.error().to_string() : what_of(plan.error().message()));
  }
  const std::string others = fitting(spec, original);
  return Error(Code::kRefused, fmt::format("{} of {}, and the job cannot go on there ({}){}, min_nodes is {}",
                                           are_left, original.nodes, reason,
                                           others.empty() ? "" : "; its batch divides on " + others, fewest));
}

}  // namespace shardrun::launcher
