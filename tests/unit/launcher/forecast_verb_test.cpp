#include <doctest/doctest.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/cluster/load_job.h"
#include "launcher/foresight/forecast.h"
#include "launcher/foresight/prediction.h"
#include "launcher/foresight/written.h"
#include "runtime/base/io.h"
#include "tests/support/folder.h"
#include "tests/support/job_of_7b.h"

using namespace shardrun::launcher;

TEST_CASE("forecast: a rank of a type is what its framework calls an accelerator") {
  const Catalogue catalogue = built_in_catalogue();

  const auto p4d = machine_of(*catalogue.find("p4d.24xlarge"));
  const auto trn1 = machine_of(*catalogue.find("trn1.32xlarge"));

  REQUIRE(p4d);
  CHECK_EQ(p4d->per_node, 8);
  CHECK(p4d->peak == doctest::Approx(312e12));
  CHECK(p4d->network_rate == doctest::Approx(50e9));
  CHECK(p4d->link_rate == doctest::Approx(300e9));
  REQUIRE(trn1);
  CHECK_EQ(trn1->per_node, 32);
  CHECK(trn1->peak == doctest::Approx(95e12));
  CHECK(trn1->generation == Generation::kTrainium);
}

TEST_CASE("forecast: a type without accelerators is refused with examples of others") {
  const Catalogue catalogue = built_in_catalogue();
  const auto cpu = machine_of(*catalogue.find("c7i.8xlarge"));

  REQUIRE_FALSE(cpu);
  CHECK(cpu.error().to_string().starts_with("c7i.8xlarge has no accelerators; "));
}

TEST_CASE("forecast: a number of nodes that cannot run the job says why, in the table and in JSON") {
  ForecastReport report;
  report.job = "x";
  report.software = "fsdp";
  report.lines.push_back(
      {.machine = "p4d.24xlarge", .nodes = 3, .accelerators = 24, .reasons = {"does not divide"}});

  CHECK_EQ(
      to_json(report),
      "{\"kind\": \"prediction\", \"software\": \"fsdp\", \"scaling\": \"strong\", \"lines\": [{\"machine\": "
      "\"p4d.24xlarge\", \"nodes\": 3, \"accelerators\": 24, \"global_batch\": 0, \"combinations\": 0, "
      "\"reasons\": [\"does not divide\"]}]}\n");
  CHECK_EQ(forecast_svg(report), "");
}

// For a token of causal attention: 6 * 10 layers * 16,777,216 parameters = 1,006,632,960 FLOPs in linear layers, 6
// * 32768 * 1024 = 201,326,592 in the head, 6 * 10 * 1024 * 1024 = 62,914,560 in scores and 6 * 10 * 2048 = 122,880
// counted for norms. An H200 multiplies 1979e12 in fp8 and 989e12 in bf16: that takes 508.657 ns and 267.304 ns for
// a token, so 1637.96e12 together.
TEST_CASE("forecast: the peak of a job in fp8 is fp8's for its linear layers and bf16's for the rest") {
  shardrun::spec::JobSpec spec;
  spec.program.trainer = "llama";
  spec.resources.device = shardrun::spec::DeviceKind::kGpu;
  spec.model.layers = 10;
  spec.model.hidden = 1024;
  spec.model.heads = spec.model.kv_heads = 8;
  spec.model.ffn = 4096;
  spec.model.vocab = 32768;
  spec.data.sequence_length = 1024;
  const auto bf16 = peak_of_device(spec, "NVIDIA H200");
  spec.precision.fp8 = true;
  const auto fp8 = peak_of_device(spec, "NVIDIA H200");
  const auto without = peak_of_device(spec, "NVIDIA A100-SXM4-80GB");

  REQUIRE(bf16);
  REQUIRE(fp8);
  REQUIRE(without);
  CHECK(bf16->flops == doctest::Approx(989e12));
  CHECK(fp8->flops == doctest::Approx(1637.96e12));
  CHECK_EQ(fp8->source, "datasheet of h200, fp8 in 79.2 % of the FLOPs and bf16");
  CHECK(without->flops == doctest::Approx(312e12));
}

namespace {

// A model of 70 billion parameters on one node of eight accelerators with 40 GiB.
Question question_of_70b(int64_t nodes) {
  Question question;
  question.machine = *machine_of(*built_in_catalogue().find("p4d.24xlarge"));
  question.model = {.layers = 80, .hidden = 8192, .kv_width = 1024, .ffn = 28672, .vocab = 32000};
  question.traits = traits(Stack::kFms);
  question.constants = fitted_constants();
  question.nodes = nodes;
  question.global_batch = 8 * nodes;
  question.sequence_length = 4096;
  question.heads = 8;
  return question;
}

shardrun::spec::JobSpec spec_of_70b() {
  shardrun::spec::JobSpec spec;
  spec.program.trainer = "llama";
  spec.batch.micro_batch = 1;
  spec.batch.global_batch = 8;
  spec.sharding.strategy = shardrun::spec::Strategy::kFullShard;
  return spec;
}

}  // namespace

TEST_CASE("forecast: a layout as written that does not fit has no speed, and says what would fit") {
  const Belief belief(fitted_constants(), {});
  const auto written = written_layout(spec_of_70b(), false, question_of_70b(1), belief);

  REQUIRE(written);
  CHECK_FALSE(written->sure);
  CHECK(written->reserved_bytes > written->usable_bytes);
  REQUIRE_EQ(written->mends.size(), 1);
  CHECK(written->mends.front().starts_with("on "));
  ForecastReport report;
  report.written = written;
  const std::string json = to_json(report);
  CHECK(json.find("\"fits\": false") != std::string::npos);
  CHECK(json.find("step_seconds") == std::string::npos);
}

TEST_CASE(
    "forecast: a layout as written that fits has a speed with its interval, and what is left of the memory") {
  const Belief belief(fitted_constants(), {});
  shardrun::spec::JobSpec spec = spec_of_70b();
  spec.batch.global_batch = 256;
  spec.memory.activation_checkpointing = shardrun::spec::Checkpointing::kFull;
  Question question = question_of_70b(32);
  question.global_batch = 256;
  const auto written = written_layout(spec, false, question, belief);

  REQUIRE(written);
  REQUIRE(written->sure);
  CHECK(written->active_bytes < written->reserved_bytes);
  CHECK(written->reserved_bytes <= written->usable_bytes);
  CHECK(written->reserved_between.low < written->reserved_bytes);
  CHECK(written->reserved_between.high > 1.2 * written->reserved_bytes);
  CHECK(written->mends.empty());
  ForecastReport report;
  report.written = written;
  const std::string json = to_json(report);
  CHECK(json.find("\"interval\": {\"share\": 0.8, \"step_seconds\": [") != std::string::npos);
}

namespace {

// The 7B on 16 nodes, with what is given in its [batch] and behind it.
LoadedSpec job_on_16(const std::string& batch) {
  auto loaded = load_spec_text(shardrun::tests::job_of_7b(16, "micro_batch = 1\n" + batch), "job.toml", {});
  if (!loaded) FAIL(loaded.error().to_string());
  return *loaded;
}

ForecastReport forecast_on(const LoadedSpec& job, const std::string& nodes, const std::string& scaling) {
  PlanOptions options;
  options.nodes = nodes;
  options.scaling = scaling;
  auto report = forecast_job(options, job);
  if (!report) FAIL(report.error().to_string());
  return *report;
}

}  // namespace

TEST_CASE("forecast: a batch that is given as accumulation is that of the nodes that are asked about") {
  const LoadedSpec job = job_on_16("gradient_accumulation = 4\n");
  const ForecastReport weak = forecast_on(job, "32,64", ""), strong = forecast_on(job, "32,64", "strong");

  REQUIRE_EQ(weak.lines.size(), 2);
  CHECK_EQ(weak.lines[0].global_batch, 4 * 32 * 8);
  CHECK_EQ(weak.lines[1].global_batch, 4 * 64 * 8);
  CHECK_EQ(strong.lines[0].global_batch, 4 * 32 * 8);
  CHECK_EQ(strong.lines[1].global_batch, 4 * 32 * 8);
}

TEST_CASE(
    "forecast: a batch that grows with the nodes is not rounded, and where it is no whole number that is "
    "said") {
  const ForecastReport report = forecast_on(job_on_16("global_batch = 512\n"), "24,32,48", "weak");

  REQUIRE_EQ(report.lines.size(), 3);
  CHECK_EQ(report.lines[0].global_batch, 512);
  CHECK_FALSE(report.lines[1].best);
  CHECK_EQ(
      report.lines[1].reasons.front(),
      "a batch of 512 sequences on 24 nodes is no whole number of them on 32; use multiples of 24 nodes");
  CHECK_EQ(report.lines[2].global_batch, 1024);
}

TEST_CASE("forecast: an uneven batch as written has the tokens of the sequences that it says") {
  const LoadedSpec job = job_on_16("global_batch = 160\nuneven = \"distribute\"\n");
  PlanOptions options;
  const auto report = forecast_job(options, job);

  REQUIRE(report);
  REQUIRE(report->written);
  CHECK_EQ(report->written->layout.global_batch, 160);
  if (report->written->sure) CHECK_EQ(report->written->sure->step.tokens, 160.0 * 4096.0);
}

TEST_CASE("forecast: the parts of a pipeline's step add up to it, with the wait for other stages") {
  PlanOptions options;
  options.software = "megatron,pipeline=4";
  const auto report = forecast_job(options, job_on_16("global_batch = 512\n"));
  REQUIRE(report);
  REQUIRE(report->lines.front().best);

  const auto line = nlohmann::json::parse(to_json(*report))["lines"][0];

  const auto& seconds = line["seconds"];
  double sum = 0.0;
  for (const char* part : {"kernels", "exposed", "bubble", "optimizer", "host", "straggle"})
    sum += seconds[part].get<double>();
  CHECK_GT(seconds["bubble"].get<double>(), 0.0);
  CHECK_EQ(sum, doctest::Approx(line["step_seconds"].get<double>()).epsilon(1e-4));
}

TEST_CASE("forecast: a price and a rate that are no numbers above 0 are refused") {
  const shardrun::tests::Folder folder;
  PlanOptions options;
  options.prices = folder.path() + "/prices.toml";
  for (const char* price : {"inf", "nan", "0", "-1.5"}) {
    REQUIRE(shardrun::base::write_file_atomically(options.prices,
                                                  fmt::format("\"p4de.24xlarge\" = {}\n", price)));
    CHECK_FALSE(forecast_job(options, job_on_16("global_batch = 512\n")));
  }
  for (const char* rate : {"inf", "nan", "0", "-1"}) {
    PlanOptions learning;
    learning.measured = {fmt::format("tokens_per_second={}", rate)};
    const auto report = forecast_job(learning, job_on_16("global_batch = 512\n"));
    REQUIRE_FALSE(report);
    CHECK(report.error().to_string().find("not a number above 0") != std::string::npos);
  }
}
