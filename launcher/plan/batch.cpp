#include "launcher/plan/batch.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/text.h"
#include "runtime/plan/mesh.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr int64_t kLargestBatch = int64_t{1} << 40;

// The largest number of ranks ≤ `limit` that divides `units`, and the smallest > `limit` (0 if there is none).
struct Nearest {
  int64_t below = 0, above = 0;
};
Nearest nearest_divisors(int64_t units, int64_t limit) {
  Nearest nearest;
  for (int64_t ranks = std::min(limit, units); ranks >= 1 && nearest.below == 0; --ranks) {
    if (units % ranks == 0) nearest.below = ranks;
  }
  constexpr int64_t kSearch = 1 << 17;  // exceeds the number of ranks that a job may have
  for (int64_t ranks = limit + 1; ranks <= std::min(units, limit + kSearch) && nearest.above == 0; ++ranks) {
    if (units % ranks == 0) nearest.above = ranks;
  }
  return nearest;
}

Error indivisible(const spec::JobSpec& spec, int64_t global, int64_t micro, int64_t ranks) {
  const int64_t unit = micro * ranks;
  const int64_t below = global / unit * unit;
  std::string mend = below > 0 ? fmt::format("global_batch = {} or {} divides", below, below + unit)
                               : fmt::format("global_batch = {} is the smallest that divides", unit);
  if (global % micro == 0) {
    const Nearest nearest = nearest_divisors(global / micro, ranks);
    mend += fmt::format("; {} divides on {}{} ranks", global, nearest.below,
                        nearest.above > 0 ? fmt::format(" or {}", nearest.above) : "");
  } else {
    mend += fmt::format("; {} is no multiple of micro_batch {} on any number of ranks", global, micro);
  }
  if (global >= ranks) mend += "; uneven = \"distribute\" spreads it as it is";
  return Error(Code::kInvalid,
               fmt::format("{}: global_batch {} is not micro_batch {} × {} ranks × a whole accumulation; {}",
                           spec.origin("batch.global_batch"), global, micro, ranks, mend));
}

Error too_many_ranks(const spec::JobSpec& spec, int64_t global, int64_t ranks) {
  return Error(Code::kInvalid,
               fmt::format("{}: {} ranks cannot share {} sequences: some would have none; use at most {} "
                           "ranks, or global_batch = {} or more",
                           spec.origin("batch.global_batch"), ranks, global, global, ranks));
}

bool can_be_solved(const spec::JobSpec& spec, int64_t nodes) {
  const int64_t world = nodes * spec.resources.ranks_per_node;
  if (world > record::LaunchPlan::kLargestWorld) return false;
  const auto mesh = plan::solve_mesh(spec, world, spec.resources.ranks_per_node);
  if (!mesh) return false;
  if (!spec.batch.global_batch) return true;
  if (spec.batch.uneven == spec::Uneven::kDistribute) return *spec.batch.global_batch >= mesh->readers();
  return *spec.batch.global_batch % (spec.batch.micro_batch * int64_t{mesh->readers()}) == 0;
}

}  // namespace

NearestNodes nearest_nodes(const spec::JobSpec& spec, int64_t nodes) {
  int64_t most_ranks = record::LaunchPlan::kLargestWorld;
  if (spec.batch.global_batch)  // a rank has at least one sequence
    most_ranks = std::min(most_ranks, *spec.batch.global_batch * spec.sharding.tensor_parallel *
                                          spec.sharding.pipeline_parallel);
  const int64_t most = most_ranks / spec.resources.ranks_per_node;
  NearestNodes nearest;
  for (int64_t below = std::min(nodes - 1, most); below >= 1 && nearest.below == 0; --below) {
    if (can_be_solved(spec, below)) nearest.below = below;
  }
  for (int64_t above = nodes + 1; above <= most && nearest.above == 0; ++above) {
    if (can_be_solved(spec, above)) nearest.above = above;
  }
  return nearest;
}

std::string describe_batch(const plan::BatchPlan& plan) {
  if (!plan.is_possible()) return fmt::format("{} sequences", plan.global_batch);
  if (plan.is_even()) {
    return fmt::format("{} sequences = micro-batch {} × accumulation {} × {}", plan.global_batch,
                       plan.micro_batch, plan.gradient_accumulation,
                       base::counted(plan.data_parallel, "data-parallel rank"));
  }
  const int64_t last = plan.gradient_accumulation - 1;
  const int64_t most = plan.share(last, 0).count, least = plan.share(last, plan.data_parallel - 1).count;
  const std::string full =
      last > 0 ? fmt::format("{} of {} and then one of ", base::counted(last, "micro-step"), plan.micro_batch)
               : "a micro-step of ";
  return fmt::format("{} sequences spread over {} data-parallel ranks: {}{} on each", plan.global_batch,
                     plan.data_parallel, full,
                     most == least ? fmt::format("{}", most) : fmt::format("{} or {}", most, least));
}

Result<plan::BatchPlan> solve_batch(const spec::JobSpec& spec, int64_t data_parallel) {
  SHARDRUN_CHECK(data_parallel >= 1);
  plan::BatchPlan plan;
  plan.data_parallel = data_parallel;
  plan.micro_batch = spec.batch.micro_batch;
  const int64_t unit = plan.micro_batch * data_parallel;  // both are bounded by the spec: no overflow
  if (spec.batch.global_batch) {
    plan.global_batch = *spec.batch.global_batch;
    const bool distribute = spec.batch.uneven == spec::Uneven::kDistribute;
    if (plan.global_batch % unit != 0 && !distribute) {
      return indivisible(spec, plan.global_batch, plan.micro_batch, data_parallel);
    }
    if (plan.global_batch < data_parallel) return too_many_ranks(spec, plan.global_batch, data_parallel);
    plan.gradient_accumulation = (plan.global_batch + unit - 1) / unit;
    return plan;
  }
  plan.gradient_accumulation = spec.batch.gradient_accumulation.value_or(1);
  if (plan.gradient_accumulation > kLargestBatch / unit) {
    return Error(Code::kInvalid, fmt::format("{}: {} micro-steps × micro_batch {} × {} ranks is beyond 2^40 "
                                             "sequences; lower gradient_accumulation",
                                             spec.origin("batch.gradient_accumulation"),
                                             plan.gradient_accumulation, plan.micro_batch, data_parallel));
  }
  plan.global_batch = plan.gradient_accumulation * unit;
  return plan;
}

}  // namespace shardrun::launcher
