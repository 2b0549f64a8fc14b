#include <doctest/doctest.h>

#include "launcher/verbs/calibration_file.h"
#include "launcher/verbs/forecast.h"

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
  spec.resources.device = shardrun::spec::TrainingDevice::kGpu;
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
