#include "runtime/plan/batch_plan.h"

#include <algorithm>

#include "runtime/base/result.h"

namespace shardrun::plan {

BatchPlan::Share BatchPlan::share(int64_t micro_step, int64_t data_rank) const {
  SHARDRUN_CHECK(micro_step >= 0 && micro_step < gradient_accumulation);
  SHARDRUN_CHECK(data_rank >= 0 && data_rank < data_parallel);
  const int64_t full = micro_batch * data_parallel, begin = micro_step * full;
  const int64_t here = std::min(full, global_batch - begin);
  const int64_t each = here / data_parallel, ranks_with_one_more = here % data_parallel;
  return {begin + data_rank * each + std::min(data_rank, ranks_with_one_more),
          each + (data_rank < ranks_with_one_more ? 1 : 0)};
}

bool BatchPlan::is_possible() const {
  if (global_batch < 1 || micro_batch < 1 || gradient_accumulation < 1 || data_parallel < 1) return false;
  const auto divided_up = [](int64_t whole, int64_t by) { return whole / by + (whole % by > 0 ? 1 : 0); };
  return gradient_accumulation == divided_up(divided_up(global_batch, micro_batch), data_parallel);
}

int64_t BatchPlan::sequences_of(int64_t data_rank) const {
  return (gradient_accumulation - 1) * micro_batch + share(gradient_accumulation - 1, data_rank).count;
}

BatchPlan even_batch(int64_t micro_batch, int64_t gradient_accumulation, int64_t data_parallel) {
  return {micro_batch * gradient_accumulation * data_parallel, micro_batch, gradient_accumulation,
          data_parallel};
}

}  // namespace shardrun::plan
