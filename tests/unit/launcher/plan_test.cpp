#include <doctest/doctest.h>

#include "launcher/plan/batch.h"

using namespace shardrun;

namespace {
contract::JobSpec spec_with(int64_t global_batch, int micro_batch) {
  contract::JobSpec spec;
  spec.batch.global_batch = global_batch;
  spec.batch.micro_batch = micro_batch;
  spec.origins["batch.global_batch"] = "job.toml:9:16";
  return spec;
}
}  // namespace

TEST_CASE("batch: for every number of ranks the product is exact, or it is refused") {
  for (int64_t ranks = 1; ranks <= 4096; ++ranks) {
    const auto plan = launcher::solve_batch(spec_with(16384, 2), ranks);
    const bool divides = 16384 % (2 * ranks) == 0;
    REQUIRE_EQ(plan.has_value(), divides);
    if (plan) CHECK_EQ(plan->micro_batch * plan->gradient_accumulation * plan->data_parallel, 16384);
  }
}

TEST_CASE("batch: a refusal names the nearest global batches and the nearest numbers of ranks") {
  const auto refused = launcher::solve_batch(spec_with(128, 4), 3);
  REQUIRE_FALSE(refused);
  CHECK_EQ(refused.error().to_string(),
           "job.toml:9:16: global_batch 128 is not micro_batch 4 × 3 ranks × a whole accumulation; "
           "global_batch = 120 or "
           "132 divides; 128 divides on 2 or 4 ranks");
  const auto too_many = launcher::solve_batch(spec_with(8, 4), 5);
  REQUIRE_FALSE(too_many);
  CHECK_NE(too_many.error().to_string().find(
               "global_batch = 20 is the smallest that divides; 8 divides on 2 ranks"),
           std::string::npos);
  const auto odd = launcher::solve_batch(spec_with(9, 4), 2);
  REQUIRE_FALSE(odd);
  CHECK_NE(odd.error().to_string().find("9 is no multiple of micro_batch 4 on any number of ranks"),
           std::string::npos);
}

TEST_CASE("batch: weak scaling lets the global batch grow with the ranks") {
  contract::JobSpec spec;
  spec.batch.gradient_accumulation = 3;
  spec.batch.micro_batch = 2;
  spec.batch.scaling = contract::Scaling::kWeak;
  CHECK_EQ(launcher::solve_batch(spec, 1)->global_batch, 6);
  CHECK_EQ(launcher::solve_batch(spec, 256)->global_batch, 1536);
}
