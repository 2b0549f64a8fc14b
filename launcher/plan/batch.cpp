#include "launcher/plan/batch.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

constexpr int64_t kLargestBatch = int64_t{1} << 40;

// The largest number of ranks ≤ `limit` that divides `units`, and the smallest > `limit` (0 if there is
// none).
struct Nearest {
  int64_t below = 0, above = 0;
};
Nearest nearest_divisors(int64_t units, int64_t limit) {
  Nearest nearest;
  for (int64_t ranks = std::min(limit, units); ranks >= 1 && nearest.below == 0; --ranks) {
    if (units % ranks == 0) nearest.below = ranks;
  }
  constexpr int64_t kSearch = 1 << 17;  // more ranks than a job may have
  for (int64_t ranks = limit + 1; ranks <= std::min(units, limit + kSearch) && nearest.above == 0; ++ranks) {
    if (units % ranks == 0) nearest.above = ranks;
  }
  return nearest;
}

Error indivisible(const contract::JobSpec& spec, int64_t global, int64_t micro, int64_t ranks) {
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
  return Error(Code::kInvalid,
               fmt::format("{}: global_batch {} is not micro_batch {} × {} ranks × a whole accumulation; {}",
                           spec.origin("batch.global_batch"), global, micro, ranks, mend));
}

}  // namespace

Result<contract::BatchPlan> solve_batch(const contract::JobSpec& spec, int64_t data_parallel) {
  SHARDRUN_CHECK(data_parallel >= 1);
  contract::BatchPlan plan;
  plan.data_parallel = data_parallel;
  plan.micro_batch = spec.batch.micro_batch;
  const int64_t unit = plan.micro_batch * data_parallel;  // both are bounded by the spec: no overflow
  if (spec.batch.global_batch) {
    plan.global_batch = *spec.batch.global_batch;
    if (plan.global_batch % unit != 0) {
      return indivisible(spec, plan.global_batch, plan.micro_batch, data_parallel);
    }
    plan.gradient_accumulation = plan.global_batch / unit;
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
