#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "launcher/plan/batch.h"
#include "launcher/plan/launch_plan.h"

using namespace shardrun;

namespace {
spec::JobSpec spec_with(int64_t global_batch, int micro_batch) {
  spec::JobSpec spec;
  spec.batch.global_batch = global_batch;
  spec.batch.micro_batch = micro_batch;
  spec.origins["batch.global_batch"] = "job.toml:9:16";
  return spec;
}

spec::JobSpec job_on(int64_t nodes, int ranks_per_node, int micro_batch, spec::Uneven uneven) {
  spec::JobSpec spec;
  spec.name = "x";
  spec.resources.nodes = static_cast<int>(nodes);
  spec.resources.ranks_per_node = ranks_per_node;
  spec.batch.micro_batch = micro_batch;
  spec.batch.uneven = uneven;
  return spec;
}

// Says whether each sequence of the step is read by exactly one rank in one micro-step, and no micro-batch is overfull.
bool is_exact(const plan::BatchPlan& plan) {
  std::vector<int> times_read(static_cast<size_t>(plan.global_batch));
  for (int64_t rank = 0; rank < plan.data_parallel; ++rank) {
    int64_t of_rank = 0;
    for (int64_t micro_step = 0; micro_step < plan.gradient_accumulation; ++micro_step) {
      const auto share = plan.share(micro_step, rank);
      if (share.count < 0 || share.count > plan.micro_batch) return false;
      for (int64_t i = share.begin; i < share.begin + share.count; ++i) ++times_read[static_cast<size_t>(i)];
      of_rank += share.count;
    }
    if (of_rank != plan.sequences_of(rank) || of_rank > plan.sequences_of(0)) return false;
    if (of_rank < plan.sequences_of(0) - 1) return false;
  }
  return std::all_of(times_read.begin(), times_read.end(), [](int times) { return times == 1; });
}

// Finds the nearest numbers of nodes by trying each of them.
launcher::NearestNodes tried_nodes(const spec::JobSpec& spec, int64_t nodes) {
  const int64_t ranks_per_node = spec.resources.ranks_per_node, global = *spec.batch.global_batch;
  const auto works = [&](int64_t count) {
    return spec.batch.uneven == spec::Uneven::kDistribute
               ? count * ranks_per_node <= global
               : global % (count * ranks_per_node * spec.batch.micro_batch) == 0;
  };
  launcher::NearestNodes nearest;
  for (int64_t below = nodes - 1; below >= 1 && nearest.below == 0; --below)
    if (works(below)) nearest.below = below;
  for (int64_t above = nodes + 1; above <= global && nearest.above == 0; ++above)
    if (works(above)) nearest.above = above;
  return nearest;
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

TEST_CASE(
    "batch: on every number of nodes the ranks read exactly the global batch, or the nearest numbers are "
    "named") {
  constexpr int64_t kGlobalBatches[] = {96, 128, 1000, 4096, 16384};
  int solved = 0, refused = 0;
  for (const int ranks_per_node : {1, 2, 8}) {
    for (const int64_t global : kGlobalBatches) {
      for (int64_t nodes = 1; nodes <= 256; ++nodes) {
        CAPTURE(global);
        CAPTURE(nodes);
        CAPTURE(ranks_per_node);
        for (const auto uneven : {spec::Uneven::kRefuse, spec::Uneven::kDistribute}) {
          spec::JobSpec spec = job_on(nodes, ranks_per_node, 2, uneven);
          spec.batch.global_batch = global;
          const auto plan = launcher::solve_launch_plan(spec, {});
          const bool fits = uneven == spec::Uneven::kDistribute ? global >= nodes * ranks_per_node
                                                                : global % (2 * nodes * ranks_per_node) == 0;
          REQUIRE_EQ(plan.has_value(), fits);
          (plan ? solved : refused) += 1;
          if (plan) {
            REQUIRE(is_exact(plan->batch));
            REQUIRE_EQ(plan->batch.global_batch, global);
            continue;
          }
          const auto nearest = launcher::nearest_nodes(spec, nodes), tried = tried_nodes(spec, nodes);
          REQUIRE_EQ(nearest.below, tried.below);
          REQUIRE_EQ(nearest.above, tried.above);
          const std::string text = plan.error().to_string();
          if (nearest.below > 0) REQUIRE_NE(text.find(fmt::format("{}", nearest.below)), std::string::npos);
          if (nearest.above > 0)
            REQUIRE_NE(text.find(fmt::format("{} nodes", nearest.above)), std::string::npos);
        }
      }
    }
  }
  CHECK_GT(solved, 1000);
  CHECK_GT(refused, 1000);
}

TEST_CASE(
    "batch: with weak scaling every number of nodes keeps the accumulation, and the global batch grows") {
  for (const int ranks_per_node : {1, 2, 8}) {
    for (const int64_t accumulation : {1, 3, 16}) {
      for (int64_t nodes = 1; nodes <= 256; ++nodes) {
        spec::JobSpec spec = job_on(nodes, ranks_per_node, 2, spec::Uneven::kRefuse);
        spec.batch.scaling = spec::Scaling::kWeak;
        spec.batch.gradient_accumulation = accumulation;
        const auto plan = launcher::solve_launch_plan(spec, {});
        REQUIRE(plan);
        REQUIRE_EQ(plan->batch.global_batch, nodes * ranks_per_node * accumulation * 2);
        REQUIRE_EQ(plan->batch.gradient_accumulation, accumulation);
        REQUIRE(is_exact(plan->batch));
      }
    }
  }
}

TEST_CASE("batch: the script that floors is wrong on 3 and on 256 nodes; this plan is not") {
  spec::JobSpec spec = job_on(3, 1, 1, spec::Uneven::kDistribute);
  spec.batch.global_batch = 128;
  const auto three = launcher::solve_launch_plan(spec, {});
  REQUIRE(three);
  CHECK_EQ(three->batch.gradient_accumulation, 43);
  CHECK_EQ(three->batch.sequences_of(0), 43);
  CHECK_EQ(three->batch.sequences_of(2), 42);
  CHECK_EQ(
      launcher::describe_batch(three->batch),
      "128 sequences spread over 3 data-parallel ranks: 42 micro-steps of 1 and then one of 1 or 0 on each");
  spec.resources.nodes = 256;
  CHECK_EQ(launcher::solve_launch_plan(spec, {}).error().to_string(),
           "job spec: 256 ranks cannot share 128 sequences: some would have none; use at most 128 ranks, or "
           "global_batch = 256 or more; 128 nodes work");
}

TEST_CASE("batch: a restart on fewer nodes is solved again by the same function") {
  spec::JobSpec spec = job_on(4, 8, 2, spec::Uneven::kDistribute);
  spec.batch.global_batch = 128;
  CHECK_EQ(launcher::solve_batch(spec, 32)->gradient_accumulation, 2);
  const auto fewer = launcher::solve_batch(spec, 24);
  REQUIRE(fewer);
  CHECK_EQ(fewer->global_batch, 128);
  CHECK(is_exact(*fewer));
}

TEST_CASE("batch: a refusal names the nearest global batches and the nearest numbers of ranks") {
  const auto refused = launcher::solve_batch(spec_with(128, 4), 3);
  REQUIRE_FALSE(refused);
  CHECK_EQ(refused.error().to_string(),
           "job.toml:9:16: global_batch 128 is not micro_batch 4 × 3 ranks × a whole accumulation; "
           "global_batch = 120 or "
           "132 divides; 128 divides on 2 or 4 ranks; uneven = \"distribute\" spreads it as it is");
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
  spec::JobSpec spec;
  spec.batch.gradient_accumulation = 3;
  spec.batch.micro_batch = 2;
  spec.batch.scaling = spec::Scaling::kWeak;
  CHECK_EQ(launcher::solve_batch(spec, 1)->global_batch, 6);
  CHECK_EQ(launcher::solve_batch(spec, 256)->global_batch, 1536);
}
