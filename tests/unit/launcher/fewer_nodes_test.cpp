#include "launcher/plan/fewer_nodes.h"

#include <doctest/doctest.h>

#include "launcher/plan/launch_plan.h"
#include "launcher/plan/node_memory.h"

using namespace shardrun;
using namespace shardrun::launcher;
using record::LaunchPlan;

namespace {

spec::JobSpec job(int nodes, int ranks_per_node, int micro_batch, int min_nodes) {
  spec::JobSpec spec;
  spec.name = "x";
  spec.resources.nodes = nodes;
  spec.resources.ranks_per_node = ranks_per_node;
  spec.batch.micro_batch = micro_batch;
  spec.fault_tolerance.min_nodes = min_nodes;
  return spec;
}

spec::JobSpec strong_job(int nodes, int64_t global_batch, int min_nodes) {
  spec::JobSpec spec = job(nodes, 1, 1, min_nodes);
  spec.batch.global_batch = global_batch;
  return spec;
}

LaunchPlan begun(const spec::JobSpec& spec) {
  auto plan = solve_launch_plan(spec, {});
  REQUIRE(plan);
  return *plan;
}

std::string refusal(const spec::JobSpec& spec, int left, const PlanCheck& check = {}) {
  const auto plan = plan_on_fewer(spec, begun(spec), left, check);
  REQUIRE_FALSE(plan);
  CHECK(plan.error().code() == base::Code::kRefused);
  return plan.error().message();
}

}  // namespace

TEST_CASE(
    "fewer nodes: whatever the scaling, a step keeps its sequences on the most nodes that divide them") {
  int solved = 0, refused = 0;
  for (const auto uneven : {spec::Uneven::kRefuse, spec::Uneven::kDistribute}) {
    for (const bool weak : {false, true}) {
      for (int nodes = 2; nodes <= 48; ++nodes) {
        spec::JobSpec spec = job(nodes, 2, 2, 1);
        spec.batch.uneven = uneven;
        if (weak) {
          spec.batch.scaling = spec::Scaling::kWeak;
          spec.batch.gradient_accumulation = 3;
        } else {
          spec.batch.global_batch = int64_t{nodes} * 2 * 2 * 3;
        }
        const LaunchPlan original = begun(spec);
        for (int left = 1; left < nodes; ++left) {
          CAPTURE(nodes);
          CAPTURE(left);
          const auto fewer = plan_on_fewer(spec, original, left, {});
          REQUIRE(fewer);  // one node always divides
          REQUIRE(fewer->batch.is_possible());
          REQUIRE(fewer->batch.global_batch == original.batch.global_batch);
          REQUIRE(fewer->batch.micro_batch == original.batch.micro_batch);
          REQUIRE(fewer->batch.data_parallel == fewer->world_size());
          REQUIRE(fewer->nodes <= left);
          ++solved;
          for (int larger = fewer->nodes + 1; larger <= left; ++larger) {
            REQUIRE_FALSE(plan_on_nodes(spec, original, larger));
            ++refused;
          }
        }
      }
    }
  }
  CHECK(solved > 4000);
  CHECK(refused > 4000);
}

TEST_CASE("fewer nodes: nothing but nodes and batch changes, and all nodes give back the plan of the begin") {
  spec::JobSpec spec = strong_job(4, 12, 2);
  LaunchPlan original = begun(spec);
  original.id = "4711";
  original.overrides = {"optimizer.steps=50"};
  const auto three = plan_on_fewer(spec, original, 3, {});
  REQUIRE(three);
  CHECK(three->nodes == 3);
  CHECK(three->batch.gradient_accumulation == 4);
  CHECK(three->id == "4711");
  CHECK(three->overrides == original.overrides);
  CHECK(to_json(*plan_on_nodes(spec, *three, 4)) == to_json(original));
}

TEST_CASE("fewer nodes: shard and tensor degrees must divide the ranks that are left") {
  spec::JobSpec hybrid = strong_job(4, 12, 1);
  hybrid.sharding.strategy = spec::Strategy::kHybridShard;
  hybrid.sharding.shard_degree = 2;
  CHECK(plan_on_fewer(hybrid, begun(hybrid), 3, {})->nodes == 2);
  hybrid.sharding.shard_degree = 4;
  CHECK(refusal(hybrid, 3) ==
        "3 nodes are left of 4, and the job cannot go on there (on 3: shard_degree 4 does not divide 3 "
        "data-parallel ranks), min_nodes is 1");

  spec::JobSpec tensor = strong_job(4, 12, 1);
  tensor.sharding.tensor_parallel = 2;
  tensor.model.heads = tensor.model.kv_heads = tensor.model.ffn = tensor.model.vocab = 8;
  const auto two = plan_on_fewer(tensor, begun(tensor), 3, {});
  REQUIRE(two);
  CHECK(two->nodes == 2);
  CHECK(two->batch.data_parallel == 1);
  CHECK(two->batch.gradient_accumulation == 12);
}

TEST_CASE("fewer nodes: a refusal says what is left, why that is not enough, and what would be") {
  CHECK(
      refusal(strong_job(4, 8, 3), 3) ==
      "3 nodes are left of 4, and the job cannot go on there (on 3: global_batch 8 is not micro_batch 1 × 3 "
      "ranks × a whole accumulation); its batch divides on 1 or 2 nodes, min_nodes is 3");
  CHECK(refusal(strong_job(4, 8, 3), 2) == "2 nodes are left of 4, and the job needs 3");
  CHECK(refusal(strong_job(4, 8, 0), 3) == "3 nodes are left of 4, and the job needs 4");
  CHECK(refusal(strong_job(2, 8, 1), 0) == "no node is left of 2, and the job needs 1");
}

TEST_CASE("fewer nodes: a number that a check refuses is passed over, and its reason is told") {
  const spec::JobSpec spec = strong_job(4, 12, 1);
  const auto at_most_two = [](const LaunchPlan& plan) -> base::Result<void> {
    if (plan.nodes > 2) return base::Error(base::Code::kRefused, "too hot");
    return {};
  };
  CHECK(plan_on_fewer(spec, begun(spec), 3, at_most_two)->nodes == 2);
  const auto never = [](const LaunchPlan&) -> base::Result<void> {
    return base::Error(base::Code::kRefused, "too hot");
  };
  CHECK(refusal(spec, 3, never).find("cannot go on there (on 3: too hot)") != std::string::npos);
}

TEST_CASE("node memory: what Slurm granted counts, as far as the machine has it") {
  std::map<std::string, std::string> variables;
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  CHECK_FALSE(node_memory_bytes(lookup, std::nullopt));
  CHECK(node_memory_bytes(lookup, 1000) == 1000);
  variables = {{"SLURM_MEM_PER_CPU", "2"}, {"SLURM_CPUS_ON_NODE", "3"}};
  CHECK(node_memory_bytes(lookup, std::nullopt) == 6 << 20);
  CHECK(node_memory_bytes(lookup, 1000) == 1000);
  variables["SLURM_MEM_PER_NODE"] = "5";
  CHECK(node_memory_bytes(lookup, int64_t{1} << 40) == 5 << 20);
  for (const char* nothing : {"0", "", "-1", "many", "99999999999999999999"}) {
    variables = {{"SLURM_MEM_PER_NODE", nothing}};
    CHECK(node_memory_bytes(lookup, 1000) == 1000);
  }
}

TEST_CASE("node memory: a rank's program is believed where it says four numbers that a program can hold") {
  const auto program = program_in("41943040 6 524288 20971520\n");
  REQUIRE(program);
  CHECK(program->bytes == 41943040);
  CHECK(program->products == 6);
  CHECK(program->product_bytes == 524288);
  CHECK(program->library_bytes == 20971520);
  for (const char* said : {"", "1 2 3", "1 2 3 4", "1 2 -3 4\n", "9223372036854775807 2 3 4\n", "usage: …\n"})
    CHECK_FALSE(program_in(said));
}

TEST_CASE("node memory: ranks that plan to hold more than their node has are refused, with both figures") {
  plan::MemoryPlan rank;
  rank.masters = int64_t{3} << 30;
  CHECK(fits_in_memory(rank, 2, int64_t{6} << 30));
  CHECK(fits_in_memory(rank, 2, std::nullopt));
  const auto refused = fits_in_memory(rank, 2, int64_t{5} << 30);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message() == "a rank would hold 3.00 GiB, and a node has 5.00 GiB for 2 of them");
}

TEST_CASE(
    "fewer nodes: a command program without [batch] counts no sequences, and goes on with any number of "
    "nodes") {
  const auto text = [](const char* batch) {
    return std::string("name = \"x\"\n[resources]\nnodes = 4\n[program]\ncommand = [\"env\"]\n") + batch +
           "[fault_tolerance]\nmin_nodes = 3\nmax_restarts = 1\n";
  };
  const auto plain = spec::parse_job_spec(text(""), "job.toml");
  const auto batched = spec::parse_job_spec(text("[batch]\nglobal_batch = 4\n"), "job.toml");
  REQUIRE(plain);
  REQUIRE(batched);

  const auto fewer = plan_on_fewer(*plain, begun(*plain), /*left=*/3, {});
  REQUIRE(fewer);
  CHECK_EQ(fewer->nodes, 3);
  CHECK_FALSE(plain->has_batch());
  CHECK_FALSE(plan_on_fewer(*batched, begun(*batched), /*left=*/3, {}));  // 4 sequences do not divide on 3
}
