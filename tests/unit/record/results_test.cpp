#include "runtime/record/results.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

using namespace shardrun;

namespace {

record::RunRecord trained() {
  record::RunRecord record;
  record.name = "my-run";
  record.world_size = 4;
  record.batch.global_batch = 32;
  record.batch.micro_batch = 4;
  record.batch.data_parallel = 4;
  record.batch.gradient_accumulation = 2;
  record.attempts.resize(2);
  record.attempts[0].started = 1000.0;
  record.attempts[0].ended = 1060.0;
  record.attempts[1].started = 1120.0;
  record.attempts[1].ended = 1720.0;
  record.precompile = {.run = "/r", .seconds = 30.0};
  record.metrics.emplace();
  record.metrics->steps = 100;
  record.metrics->tokens_per_second = 1000.0;
  record.metrics->median_tokens_per_second = 1100.0;
  record.metrics->peak_tokens_per_second = 1500.0;
  record.metrics->steps_seconds = 480.0;
  record.metrics->first_barrier_seconds = 6.0;
  return record;
}

double measured(const nlohmann::json& json, const std::string& name) {
  for (const auto& metric : json["results"]["metrics"])
    if (metric["MetricName"] == name) return metric["MeasuredValue"];
  FAIL(name << " is not among the metrics");
  return 0.0;
}

}  // namespace

TEST_CASE("results: model, data and optimizer of the job are told with its name, and the time by phase") {
  const auto job = spec::parse_job_spec(
      "name = \"my-run\"\n[program]\ntrainer = \"llama\"\n[model]\npreset = \"llama-1m\"\n[data]\nfiles = "
      "[\"/data/wiki.tokens\", \"/data/books.tokens\"]\nsequence_length = 128\nseed = "
      "7\n[precision]\nparameters = "
      "\"fp32\"\n[optimizer]\nkind = \"lamb\"\nwarmup_steps = 5\nlearning_rate = 0.002\n",
      "job.toml");
  REQUIRE(job);

  const auto json = base::parse_json(record::to_results_json(trained(), &*job));

  const auto& parameters = json["results"]["parameters"];
  CHECK(parameters["Job"] == "my-run");
  CHECK(parameters["Model"] == "llama-1m");
  CHECK(parameters["Model configuration"]["architecture"] == "llama");
  CHECK(parameters["Model configuration"]["layers"] == job->model.layers);
  CHECK(parameters["Model configuration"]["sequence_length"] == 128);
  CHECK(parameters["Dataset"] == nlohmann::json({"wiki.tokens", "books.tokens"}));
  CHECK(parameters["Optimizer"] == "lamb");
  CHECK(parameters["Data type"] == "fp32");
  CHECK(parameters["Sharding"] == "full_shard");
  CHECK(parameters["Warmup steps"] == 5);
  CHECK(parameters["Seed"] == 7);
  CHECK(parameters["Global batch size"] == 32);
  CHECK(parameters["Batch size"] == 4);
  CHECK(parameters["Total steps"] == 100);
  CHECK_EQ(measured(json, "Median throughput"), 1100.0);
  CHECK_EQ(measured(json, "Peak throughput"), 1500.0);
  CHECK_EQ(measured(json, "Time to train"), 12.0);  // minutes
  CHECK_EQ(measured(json, "Time to compile"), 0.5);
  CHECK_EQ(measured(json, "Time in earlier attempts"), 1.0);
  CHECK_EQ(measured(json, "Time between attempts"), 1.0);  // it waited to be resumed
  CHECK_EQ(measured(json, "Time to start"), 0.1);
  CHECK_EQ(measured(json, "Time in steps"), 8.0);
  CHECK_EQ(measured(json, "Time beside steps"), 1.9);
}

TEST_CASE("results: of a command, whose model nobody here knows, the job's name stands for it") {
  const auto job = spec::parse_job_spec("name = \"my-run\"\n[program]\ncommand = [\"env\"]\n", "job.toml");
  REQUIRE(job);
  record::RunRecord record = trained();
  record.metrics.reset();

  const auto parameters = base::parse_json(record::to_results_json(record, &*job))["results"]["parameters"];

  CHECK(parameters["Model"] == "my-run");
  CHECK_FALSE(parameters.contains("Dataset"));
}
