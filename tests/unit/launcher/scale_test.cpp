#include <doctest/doctest.h>

#include "launcher/plan/scale.h"

using namespace shardrun;
using launcher::parse_node_counts;
using launcher::scale_table;

namespace {

spec::JobSpec strong_job(int64_t global_batch) {
  spec::JobSpec spec;
  spec.name = "x";
  spec.resources.ranks_per_node = 2;
  spec.batch.micro_batch = 2;
  spec.batch.global_batch = global_batch;
  spec.origins["batch.global_batch"] = "job.toml:9:16";
  return spec;
}

const std::vector<int64_t> kCounts = {1, 2, 3, 4};

}  // namespace

TEST_CASE("scale: strong scaling keeps the global batch, and a row that cannot be names the nearest nodes") {
  launcher::PlanContext context;
  context.overrides = {"optimizer.steps=5"};
  const auto rows = scale_table(strong_job(32), kCounts, context, std::nullopt);

  REQUIRE(rows);
  REQUIRE_EQ(rows->size(), 4);
  CHECK_EQ((*rows)[0].plan->batch.gradient_accumulation, 8);
  CHECK_EQ((*rows)[0].micro_steps(), 16);
  CHECK_EQ((*rows)[1].plan->batch.gradient_accumulation, 4);
  CHECK((*rows)[1].plan->overrides == std::vector<std::string>{"optimizer.steps=5", "resources.nodes=2"});
  CHECK_FALSE((*rows)[2].plan);
  CHECK((*rows)[2].refusal.starts_with("job.toml:9:16: global_batch 32 is not micro_batch 2 × 6 ranks"));
  CHECK((*rows)[2].refusal.ends_with("; 2 or 4 nodes work"));
  CHECK_EQ((*rows)[2].nearest.below, 2);
  CHECK_EQ((*rows)[2].nearest.above, 4);
}

TEST_CASE("scale: a strong job swept weakly gives each node the work it has on the fewest") {
  const auto rows = scale_table(strong_job(8), kCounts, {}, spec::Scaling::kWeak);

  REQUIRE(rows);
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE((*rows)[i].plan);
    CHECK_EQ((*rows)[i].plan->batch.global_batch, 8 * kCounts[i]);
    CHECK_EQ((*rows)[i].plan->batch.gradient_accumulation, 2);
  }
  CHECK((*rows)[2].plan->overrides == std::vector<std::string>{"resources.nodes=3", "batch.global_batch=24"});
}

TEST_CASE("scale: a weak job swept strongly keeps the batch it has on the fewest nodes") {
  spec::JobSpec spec = strong_job(0);
  spec.batch.global_batch.reset();
  spec.batch.gradient_accumulation = 4;
  spec.batch.scaling = spec::Scaling::kWeak;

  const auto rows = scale_table(spec, kCounts, {}, spec::Scaling::kStrong);

  REQUIRE(rows);
  CHECK_EQ((*rows)[1].plan->batch.global_batch, 16);
  CHECK_EQ((*rows)[1].plan->batch.gradient_accumulation, 2);
  CHECK((*rows)[1].plan->overrides ==
        std::vector<std::string>{"resources.nodes=2", "batch.gradient_accumulation=2"});
  CHECK_FALSE((*rows)[2].plan);
}

TEST_CASE("scale: an uneven batch counts the micro-batches that are not empty") {
  spec::JobSpec spec = strong_job(17);
  spec.batch.uneven = spec::Uneven::kDistribute;
  const auto rows = scale_table(spec, std::vector<int64_t>{2}, {}, std::nullopt);

  REQUIRE(rows);
  CHECK_EQ((*rows)[0].plan->batch.gradient_accumulation, 3);  // 4 ranks take 8, 8 and 1
  CHECK_EQ((*rows)[0].micro_steps(), 9);
}

TEST_CASE("scale: numbers of nodes come as lists and ranges, and nonsense is refused") {
  CHECK(*parse_node_counts("1,2,4") == std::vector<int64_t>{1, 2, 4});
  CHECK(*parse_node_counts("8,1-3,2") == std::vector<int64_t>{1, 2, 3, 8});
  CHECK_EQ(parse_node_counts("1-256")->size(), 256);
  for (const char* text : {"", "0", "1,", "x", "2-", "-2", "1 2", "99999999999999999999", "65537"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_node_counts(text));
  }
  CHECK_EQ(parse_node_counts("4-2").error().to_string(),
           "--nodes: \"4-2\" runs backwards; write the smaller first");
}
