#include <doctest/doctest.h>

#include "launcher/plan/launch_plan.h"
#include "launcher/plan/precompile.h"
#include "runtime/contract/rank_env.h"

using namespace shardrun;

namespace {

const std::string kJob = R"toml(name = "bert"
[resources]
nodes = 16
ranks_per_node = 32
cpus_per_rank = 4
[program]
command = ["./train.sh"]
[batch]
global_batch = 16384
micro_batch = 16
[precompile]
command = ["neuron_parallel_compile", "./train.sh", "a \"b\" \\ $(id)"]
workers = 8
[fault_tolerance]
requeue = true
)toml";

spec::JobSpec job_of(const std::string& text) {
  auto spec = spec::parse_job_spec(text, "job.toml");
  REQUIRE_MESSAGE(spec, spec.error().to_string());
  return std::move(spec).value();
}

record::LaunchPlan plan_of(const spec::JobSpec& spec) {
  launcher::PlanContext context;
  context.cache = "/fsx/cache";
  context.overrides = {"resources.partition=\"trn\""};
  auto plan = launcher::solve_launch_plan(spec, context);
  REQUIRE(plan);
  return std::move(plan).value();
}

}  // namespace

TEST_CASE(
    "precompile: the compile job is job.toml with overrides: its command on every node, with the node's "
    "CPUs") {
  const spec::JobSpec spec = job_of(kJob);
  const record::LaunchPlan job = plan_of(spec), compile = launcher::compile_plan(spec, job);

  const auto parsed = spec::parse_job_spec(kJob, "job.toml", compile.overrides);

  REQUIRE_MESSAGE(parsed, parsed.error().to_string());
  CHECK_EQ(parsed->name, "bert-precompile");
  CHECK(parsed->program.command == spec.precompile.command);
  CHECK_EQ(parsed->program.command.back(), "a \"b\" \\ $(id)");
  CHECK_EQ(parsed->resources.partition, "trn");
  CHECK_EQ(parsed->resources.nodes, 16);
  CHECK_EQ(parsed->resources.ranks_per_node, 1);
  CHECK_EQ(parsed->resources.cpus_per_rank, 128);
  CHECK_FALSE(parsed->precompile.enabled);
  CHECK_FALSE(parsed->fault_tolerance.requeue);
  CHECK_EQ(compile.world_size(), 16);
  CHECK_EQ(compile.batch.gradient_accumulation, job.batch.gradient_accumulation);
  CHECK_EQ(compile.variables.at("SHARDRUN_PRECOMPILE_WORKERS"), "8");
  CHECK_EQ(compile.variables.at("SHARDRUN_TRAINING_RANKS_PER_NODE"), "32");
}

TEST_CASE("precompile: training and compile job find the same cache, and its variables survive plan.json") {
  const spec::JobSpec spec = job_of(kJob);
  const record::LaunchPlan job = plan_of(spec), compile = launcher::compile_plan(spec, job);
  const auto read = record::parse_launch_plan(to_json(job));

  REQUIRE(read);
  CHECK(read->variables == launcher::cache_variables("/fsx/cache"));
  for (const auto& [name, value] : job.variables) CHECK_EQ(compile.variables.at(name), value);
  CHECK_EQ(read->variables.at("NEURON_COMPILE_CACHE_URL"), "/fsx/cache/neuron");
  contract::RankEnv env;
  env.world_size = 512;
  const auto none = [](const std::string&) { return std::optional<std::string>(); };
  CHECK_EQ(contract::child_environment(env, *read, none).at("TRITON_CACHE_DIR"), "/fsx/cache/triton");
}

TEST_CASE("precompile: a job without it has neither cache variables nor a compile job") {
  spec::JobSpec spec = job_of(kJob);
  spec.precompile.enabled = false;
  CHECK_FALSE(launcher::compiles_by_command(spec));
  CHECK(plan_of(spec).variables.empty());
}

TEST_CASE("precompile: a flag that leads the compiler to another cache is refused with its place") {
  const spec::JobSpec spec =
      job_of(kJob + "[environment]\nNEURON_CC_FLAGS = \"--model-type=transformer --cache_dir=/tmp/x\"\n");
  const auto plan = launcher::solve_launch_plan(spec, {});
  REQUIRE_FALSE(plan);
  CHECK_EQ(plan.error().to_string(),
           "job.toml:17:19: --cache_dir in NEURON_CC_FLAGS beats the cache of [precompile]; remove it, or "
           "write its "
           "folder as [precompile] cache");
}

TEST_CASE("precompile: the name of the compile job fits where the job's own fills the limit") {
  spec::JobSpec spec = job_of(kJob);
  spec.name = std::string(64, 'n');
  const record::LaunchPlan compile = launcher::compile_plan(spec, plan_of(spec));
  CHECK_EQ(compile.name.size(), 64);
  CHECK(compile.name.ends_with("-precompile"));
}
