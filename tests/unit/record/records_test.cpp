#include <doctest/doctest.h>

#include "runtime/contract/rank_env.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/line_metrics.h"
#include "runtime/record/run_lines.h"
#include "runtime/record/run_record.h"
#include "tests/support/folder.h"

using namespace shardrun;

namespace {
contract::EnvironmentLookup lookup_in(const std::map<std::string, std::string>& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}
}  // namespace

TEST_CASE(
    "metrics: the end of a file that has grown for months says the last step and checkpoint, without the "
    "rest") {
  const tests::Folder folder;
  std::string text;
  for (int step = 1; step <= 2000; ++step)
    text += to_json(record::MetricsLine{.step = step, .loss = 1.0, .attempt = 0});
  text += to_json(record::MetricsLine{.event = "checkpoint", .step = 2000, .attempt = 0});
  const std::string path = folder.file("metrics.jsonl", text);

  const std::string end = record::last_lines(path, /*most_bytes=*/500);

  CHECK(end.size() <= 500);
  CHECK(end.front() == '{');
  CHECK(record::last_step(end) == 2000);
  CHECK(record::last_checkpoint(end, 0) == 2000);
  CHECK(record::last_lines(path) == text);
  CHECK(record::last_lines(folder / "none").empty());
}

TEST_CASE("metrics: of a trainer that left no summary the lines say its last validation and checkpoint") {
  const auto figures = record::metrics_of_lines(
      "{\"step\":1,\"loss\":3.5,\"attempt\":0}\n"
      "{\"event\":\"validation\",\"step\":1,\"loss\":3.6,\"unigram_entropy\":3.1,\"attempt\":0}\n"
      "{\"event\":\"checkpoint\",\"step\":1,\"path\":\"/c/step_1\",\"attempt\":0}\n"
      "{\"step\":2,\"loss\":3.0,\"attempt\":0}\n");
  REQUIRE(figures);
  CHECK(figures->steps == 2);
  CHECK(*figures->final_loss == 3.0);
  CHECK(*figures->validation_loss == 3.6);
  CHECK(*figures->unigram_entropy == 3.1);
  CHECK(figures->checkpoint == "/c/step_1");
}

TEST_CASE(
    "metrics: what a command program tells of its steps becomes the run's figures, across its restarts") {
  const auto figures = record::metrics_of_lines(
      "{\"step\": 1, \"loss\": 3.5, \"time\": 100.0}\n"
      "{\"step\": 11, \"loss\": 3.0, \"time\": 105.0, \"tokens_per_second\": 10}\n"
      "no json\n"
      "{\"step\": 21, \"loss\": 2.5, \"time\": 112.5, \"tokens_per_second\": 20}\n"
      "{\"step\": 22, \"loss\": 2.25, \"step_seconds\": 1.5}\n");
  REQUIRE(figures);
  CHECK(figures->steps == 22);
  CHECK(*figures->first_loss == 3.5);
  CHECK(*figures->final_loss == 2.25);
  CHECK(figures->tokens_per_second == 15.0);
  CHECK(figures->step_seconds_p50 == 0.75);
  CHECK(figures->checkpoint.empty());
  CHECK_FALSE(record::metrics_of_lines("{\"event\": \"note\"}\n"));

  // A line that names no attempt is the newest one's.
  const auto lines = record::parse_metrics("{\"step\":1,\"loss\":1.0}\n", /*from_attempt=*/2);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].attempt == 2);
}

TEST_CASE("metrics: steps as far apart as numbers go have a time each all the same") {
  const auto figures = record::metrics_of_lines(
      "{\"step\": -9000000000000000000, \"time\": 100.0}\n{\"step\": 9000000000000000000, \"time\": "
      "118.0}\n");
  REQUIRE(figures);
  CHECK(figures->step_seconds_p50 > 0.0);
}

TEST_CASE("plan.json: what is written is read back") {
  record::LaunchPlan plan;
  plan.name = "x";
  plan.id = "12";
  plan.scheduler = "slurm";
  plan.run_directory = "/r\xff";  // no UTF-8: replaced, never a crash
  plan.overrides = {"a.b=\"c\""};
  plan.nodes = 3;
  plan.ranks_per_node = 2;
  plan.batch = {12, 2, 1, 6};

  const auto back = record::parse_launch_plan(to_json(plan));

  REQUIRE(back);
  CHECK_EQ(back->overrides, plan.overrides);
  CHECK_EQ(back->world_size(), 6);
  CHECK_EQ(back->batch.global_batch, 12);
}

TEST_CASE("plan.json: damage and newer formats are refused by name") {
  CHECK_EQ(record::parse_launch_plan("{").error().to_string(), "plan.json is not JSON");
  CHECK_EQ(record::parse_launch_plan("[]").error().to_string(), "plan.json is not a JSON object");
  CHECK_EQ(record::parse_launch_plan("{\"format_version\": 99}").error().to_string(),
           "plan.json has format 99, this version reads 1; use a newer shardrun");
  CHECK_EQ(record::parse_launch_plan("{\"format_version\": 1, \"name\": 4}").error().to_string(),
           "plan.json: \"name\" is number, not a string");
  record::LaunchPlan plan;
  plan.batch = {12, 2, 2, 6};  // 12 sequences take one micro-step
  CHECK_EQ(record::parse_launch_plan(to_json(plan)).error().to_string(),
           "plan.json batch: these numbers do not make a batch");
}

TEST_CASE("record.json: a whole record survives being written and read") {
  record::RunRecord record;
  record.name = "x";
  record.status = record::RunStatus::kFailed;
  record.world_size = 2;
  record.nodes = {"n1"};
  record::Attempt attempt;
  attempt.number = 3;
  attempt.started = 1.5;
  attempt.ended = 2.5;
  attempt.first_cause = record::FirstCause{"signal", "n1", 1, 9, std::nullopt};
  attempt.verdict = "rank 1 on node n1 was killed";
  attempt.nodes = {"n0", "n1"};
  attempt.world_size = 4;
  attempt.batch = {12, 1, 3, 4};
  attempt.also_lost = {"n7"};
  attempt.detection_seconds = 3.5;
  attempt.checkpoint_step = 40;
  attempt.stragglers = {{2, "n1", 0.25, 0.125}};
  record.attempts = {attempt};
  record.metrics = record::TrainingMetrics{};
  record.metrics->final_loss = 2.25;
  record.metrics->best = record::BestEvaluation{40, 1.5, "/c/step_00000040"};
  record.metrics->ended_early = "at step 70 of 100";
  record.metrics->planned.masters = 4096;
  record.peak_memory_bytes = {std::nullopt, 77};

  const auto back = record::parse_run_record(to_json(record));

  REQUIRE(back);
  CHECK(back->status == record::RunStatus::kFailed);
  CHECK_EQ(back->attempts.at(0).first_cause->signal, 9);
  CHECK_EQ(back->attempts.at(0).first_cause->exit_code, std::nullopt);
  CHECK_EQ(back->attempts.at(0).number, 3);
  CHECK_EQ(back->attempts.at(0).verdict, "rank 1 on node n1 was killed");
  CHECK_EQ(back->attempts.at(0).nodes, std::vector<std::string>{"n0", "n1"});
  CHECK_EQ(back->attempts.at(0).world_size, 4);
  CHECK_EQ(back->attempts.at(0).batch.global_batch, 12);
  CHECK_EQ(back->attempts.at(0).batch.gradient_accumulation, 3);
  CHECK_EQ(back->attempts.at(0).also_lost, std::vector<std::string>{"n7"});
  CHECK_EQ(back->attempts.at(0).detection_seconds, 3.5);
  CHECK_EQ(back->attempts.at(0).checkpoint_step, 40);
  CHECK_EQ(back->attempts.at(0).stragglers.at(0).global_rank, 2);
  CHECK_EQ(back->attempts.at(0).stragglers.at(0).busy_seconds, 0.25);
  CHECK_EQ(back->metrics->final_loss, 2.25);
  CHECK_EQ(back->metrics->best->step, 40);
  CHECK_EQ(back->metrics->best->loss, 1.5);
  CHECK_EQ(back->metrics->best->checkpoint, "/c/step_00000040");
  CHECK_EQ(back->metrics->ended_early, "at step 70 of 100");
  CHECK_EQ(back->metrics->planned.masters, 4096);
  CHECK_EQ(back->peak_memory_bytes.at(0), std::nullopt);
  CHECK_EQ(back->peak_memory_bytes.at(1), 77);
}

// What a run of jobs/tiny-llama.toml left when the trainer's kernels could be compiled for one job;
// paths and `predicted` are shortened, and the metrics stand for summary.json, too.
TEST_CASE("earlier runs: files that speak of compiled kernels are read, without these") {
  const std::string_view plan_json = R"({
    "batch": {"data_parallel": 2, "global_batch": 16, "gradient_accumulation": 1, "micro_batch": 8},
    "cpus_per_rank": 1, "format_version": 1, "id": "local-20261122-154349-14763", "kernels_only": false,
    "name": "tiny-llama", "nodes": 1, "overrides": ["optimizer.steps=4"], "plugin_directory": "/lib/shardrun",
    "precompile_run": "", "rank_program": "/bin/shardrun-rank", "ranks_per_node": 2, "retry_kernels": false,
    "run_directory": "/runs/tiny-llama/local-20261122-154349-14763", "scheduler": "local", "variables": {},
    "working_directory": "/home", "world_size": 2})";
  const std::string metrics = R"({
    "checkpoint": "", "final_loss": 4.520590027440145, "first_barrier_seconds": 0.3707919120788574,
    "first_loss": 5.541649184901077, "flops_per_token": 5013504.0, "format_version": 1,
    "full_flops_per_token": 5406720.0,
    "kernels": {"compile_seconds": 0.0, "compiled": 0, "prepare_seconds": 0.010121345520019531,
                "saved_seconds": 9.605999999999998, "wanted": 7},
    "model_flops_utilization": null, "peak_memory_bytes": [72691712, 71380992],
    "planned_memory_bytes": {"activations": 39059520, "communication": 738304, "compute_copy": 0,
      "context": 0, "gathered": 2953216, "gradients": 1607936, "in_files": 0, "masters": 1607936,
      "moments": 3219456, "offloaded": 0, "on_gpu": 0,
      "process": 21590016, "saving": 1048576, "total": 72366400, "workspace": 541440},
    "step_seconds": {"p50": 0.229988341, "p99": 0.305870902}, "steps": 4,
    "tokens_per_second": 8323.430767300099, "unigram_entropy": 3.1992388164862406, "utilization": [],
    "validation_loss": 4.362150224569723,
    "versions": {"comm plugin": "shardrun 0.1.0, libfabric 1.17 static", "comm provider": "shm", "device": "CPU",
                 "shardrun": "0.1.0"}})";
  const std::string record_json = R"({
    "attempts": [{"also_lost": [], "attempt": 0, "checkpoint_step": null, "detection_seconds": null,
                  "ended": 1795362230.826704, "first_cause": null, "nodes": ["vm"], "preflight": null,
                  "started": 1795362229.1688614, "stragglers": [], "verdict": "all 2 ranks ended well", "world_size": 2,
                  "batch": {"data_parallel": 2, "global_batch": 16, "gradient_accumulation": 1, "micro_batch": 8}}],
    "batch": {"data_parallel": 2, "global_batch": 16, "gradient_accumulation": 1, "micro_batch": 8},
    "exit_code": 0, "format_version": 1, "id": "local-20261122-154349-14763", "name": "tiny-llama", "nodes": ["vm"],
    "planned": {"memory_bytes": {"activations": 39059520, "communication": 738304, "compute_copy": 0,
      "context": 0, "gathered": 2953216, "gradients": 1607936, "in_files": 0, "masters": 1607936,
      "moments": 3219456, "offloaded": 0, "on_gpu": 0,
      "process": 21590016, "saving": 1048576, "total": 72366400, "workspace": 541440}},
    "precompile": null,
    "predicted": {"basis": "", "memory_bytes": null, "peak_flops": 0.0, "peak_source": "", "peaks": [],
                  "step_seconds": null, "tokens_per_second": null, "unknown_because": "nobody has calibrated here"},
    "scheduler": "local", "status": "completed",
    "verdict": "all 2 ranks ended well", "versions": {"device": "CPU", "shardrun": "0.1.0"}, "world_size": 2,
    "metrics": )" + metrics + "}";

  const auto plan = record::parse_launch_plan(plan_json);
  const auto summary = record::parse_training_metrics(metrics);
  const auto record = record::parse_run_record(record_json);

  REQUIRE(plan);
  CHECK_EQ(plan->overrides, std::vector<std::string>{"optimizer.steps=4"});
  REQUIRE(summary);
  CHECK_EQ(summary->final_loss, 4.520590027440145);
  CHECK_EQ(summary->tokens_per_second, 8323.430767300099);
  REQUIRE(record);
  CHECK(record->status == record::RunStatus::kCompleted);
  CHECK_EQ(record->metrics->validation_loss, 4.362150224569723);
  CHECK_EQ(record->metrics->steps, 4);
  CHECK_EQ(to_json(*record).find("kernels"), std::string::npos);
}

TEST_CASE("rank environment: srun's variables say who a rank is") {
  const auto env = contract::read_rank_env(lookup_in({{"SLURM_PROCID", "5"},
                                                      {"SLURM_NTASKS", "7"},
                                                      {"SLURM_LOCALID", "0"},
                                                      {"SLURM_NODEID", "3"},
                                                      {"SLURM_NNODES", "4"},
                                                      {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                                                      {"SLURMD_NODENAME", "n4"},
                                                      {"SHARDRUN_RUN_DIR", "/r"},
                                                      {"SHARDRUN_MASTER_ADDR", "n1"},
                                                      {"SHARDRUN_MASTER_PORT", "20000"}}));
  REQUIRE(env);
  CHECK_EQ(env->global_rank, 5);
  CHECK_EQ(env->node_index, 3);
  CHECK_EQ(env->local_world_size, 1);
  CHECK_EQ(env->node_name, "n4");
}

TEST_CASE("rank environment: a rank of mpirun does not believe the srun or the shardrun around it") {
  const auto env = contract::read_rank_env(lookup_in({{"SLURM_PROCID", "0"},
                                                      {"SLURM_NTASKS", "1"},
                                                      {"SHARDRUN_GLOBAL_RANK", "0"},
                                                      {"SHARDRUN_WORLD_SIZE", "1"},
                                                      {"OMPI_COMM_WORLD_RANK", "3"},
                                                      {"OMPI_COMM_WORLD_SIZE", "4"},
                                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                      {"SHARDRUN_RUN_DIR", "/r"},
                                                      {contract::kRanksByVariable, "mpirun"}}));
  REQUIRE(env);
  CHECK_EQ(env->global_rank, 3);
  CHECK_EQ(env->world_size, 4);
  CHECK_EQ(env->node_index, 1);
}

TEST_CASE("rank environment: what is missing or malformed is named with who should have set it") {
  CHECK_NE(contract::read_rank_env(lookup_in({})).error().to_string().find("no SHARDRUN_GLOBAL_RANK"),
           std::string::npos);
  CHECK_EQ(
      contract::read_rank_env(lookup_in({{"SLURM_PROCID", "x"}, {"SLURM_NTASKS", "2"}})).error().to_string(),
      "SLURM_PROCID is not a number from 0 to 1; srun should have set it");
}

TEST_CASE("rank environment: a place beside the ranks of its node is refused") {
  const auto place = [](const char* local_rank, const char* tasks_per_node) {
    return contract::read_slurm_place(lookup_in({{"SLURM_PROCID", "1"},
                                                 {"SLURM_NTASKS", "4"},
                                                 {"SLURM_LOCALID", local_rank},
                                                 {"SLURM_NODEID", "0"},
                                                 {"SLURM_NNODES", "2"},
                                                 {"SLURM_TASKS_PER_NODE", tasks_per_node}}));
  };
  CHECK(place("1", "2(x2)"));
  CHECK_EQ(place("2", "2(x2)").error().to_string(),
           "SLURM_LOCALID is not a number from 0 to 1; srun should have set it");
  for (const char* none : {"0(x2)", "-2(x2)", "4294967298(x2)"}) {
    CAPTURE(none);
    CHECK_EQ(place("1", none).error().to_string(),
             "SLURM_TASKS_PER_NODE does not say how many tasks run on node 0; srun sets it");
  }
}

TEST_CASE("rank environment: a program gets torchrun's names and its share of the batch") {
  contract::RankEnv env;
  env.global_rank = 3;
  env.world_size = 4;
  env.local_rank = 1;
  env.local_world_size = 2;
  env.node_index = 1;
  env.node_count = 2;
  env.master_addr = "n1";
  env.master_port = 20001;
  record::LaunchPlan plan;
  plan.id = "77";
  plan.cpus_per_rank = 6;
  plan.batch = {32, 2, 4, 4};

  const auto variables = contract::child_environment(env, plan, lookup_in({}));

  const std::map<std::string, std::string> expected = {{"RANK", "3"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"WORLD_SIZE", "4"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"GROUP_RANK", "1"},
                                                       {"NODE_RANK", "1"},
                                                       {"MASTER_ADDR", "n1"},
                                                       {"MASTER_PORT", "20001"},
                                                       {"TORCHELASTIC_RUN_ID", "77"},
                                                       {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                       {"OMP_NUM_THREADS", "6"},
                                                       {"GRAD_ACCUM_USTEPS", "4"},
                                                       {"SHARDRUN_RANK_BATCH", "8"},
                                                       {"SHARDRUN_LAST_MICRO_BATCH", "2"},
                                                       {"SHARDRUN_GRADIENT_ACCUMULATION", "4"}};
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    CHECK_EQ(variables.at(name), value);
  }
  CHECK_EQ(
      contract::child_environment(env, plan, lookup_in({{"OMP_NUM_THREADS", "1"}})).count("OMP_NUM_THREADS"),
      0);
}

TEST_CASE(
    "rank environment: [environment] comes last and may refer to what shardrun sets, or else to what is "
    "inherited") {
  contract::RankEnv env;
  env.global_rank = 1;
  env.world_size = 2;
  spec::JobSpec spec;
  using Kind = spec::EnvironmentValue::Kind;
  spec.environment = {{"SEED", {Kind::kFromVariable, "RANK"}},
                      {"OMP_NUM_THREADS", {Kind::kLiteral, "9"}},
                      {"MINE", {Kind::kFromVariable, "YOURS"}}};

  const auto variables =
      contract::command_environment(env, {}, spec, lookup_in({{"RANK", "other"}, {"YOURS", "inherited"}}));

  REQUIRE(variables);
  CHECK_EQ(variables->at("SEED"), "1");
  CHECK_EQ(variables->at("OMP_NUM_THREADS"), "9");
  CHECK_EQ(variables->at("MINE"), "inherited");
  CHECK_EQ(contract::command_environment(env, {}, spec, lookup_in({})).error().code(), base::Code::kNotFound);
}

TEST_CASE("rank environment: ranks of an uneven batch get their own counts, which add up to it") {
  contract::RankEnv env;
  env.world_size = 4;
  record::LaunchPlan plan;
  plan.batch = {27, 3, 3, 4};  // 3 + 3 on each, and 3 left over
  int sum = 0;
  for (env.global_rank = 0; env.global_rank < 4; ++env.global_rank) {
    const auto variables = contract::child_environment(env, plan, lookup_in({}));
    CHECK_EQ(variables.at("SHARDRUN_LAST_MICRO_BATCH"), env.global_rank < 3 ? "1" : "0");
    sum += std::stoi(variables.at("SHARDRUN_RANK_BATCH"));
  }
  CHECK_EQ(sum, 27);
}

TEST_CASE("environment references: a missing source is named, never its value") {
  using Kind = spec::EnvironmentValue::Kind;
  const auto resolved = contract::resolve_environment({{"A", {Kind::kFromVariable, "SOURCE"}}},
                                                      lookup_in({{"SOURCE", "secret"}}));
  REQUIRE(resolved);
  CHECK_EQ(resolved->at("A"), "secret");
  const auto missing = contract::resolve_environment({{"A", {Kind::kFromVariable, "GONE"}}}, lookup_in({}));
  REQUIRE_FALSE(missing);
  CHECK_NE(missing.error().to_string().find("environment.A: the variable GONE is not set"),
           std::string::npos);
}
