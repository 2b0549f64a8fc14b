#include "runtime/plan/utilization.h"
#include "runtime/base/json.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "runtime/record/results.h"
#include "runtime/record/run_record.h"

using namespace shardrun;
using plan::PeakRate;
using plan::Utilization;

namespace {

const PeakRate kMeasured{"measured", 8e12, "products of an afternoon"},
    kDatasheet{"datasheet", 10e12, "datasheet of a card, bf16"};

}  // namespace

TEST_CASE("utilization: both conventions of every peak, over all ranks") {
  // 1000 tokens/s × 2 GFLOP = 2 TFLOP/s of 2 × 8 and of 2 × 10 TFLOP/s; with all scores it is 3 TFLOP/s.
  const auto shares = plan::utilizations(1000.0, {2e9, 3e9}, {kMeasured, kDatasheet}, 2);

  REQUIRE(shares.size() == 2);
  CHECK(shares[0].peak == kMeasured);
  CHECK(shares[0].causal == doctest::Approx(0.125));
  CHECK(shares[0].full == doctest::Approx(0.1875));
  CHECK(shares[1].peak == kDatasheet);
  CHECK(shares[1].causal == doctest::Approx(0.1));
  CHECK(shares[1].full == doctest::Approx(0.15));
  CHECK(to_string(shares[1]) ==
        "10.0 % causal, 15.0 % of all scores, of 10.0 TFLOP/s a rank (datasheet of a card, bf16)");
}

TEST_CASE("utilization: nothing is said without FLOPs of the model or of the hardware") {
  CHECK(plan::utilizations(1000.0, {}, {kDatasheet}, 1).empty());
  CHECK(plan::utilizations(1000.0, {2e9, 2e9}, {{"datasheet", 0.0, ""}}, 1).empty());
  CHECK(plan::utilizations(1000.0, {2e9, 2e9}, {}, 1).empty());
}

TEST_CASE("utilization: a trainer of before told the causal convention alone, which then stands for both") {
  const auto shares = plan::utilizations(1000.0, {2e9, 0.0}, {kDatasheet}, 1);
  REQUIRE(shares.size() == 1);
  CHECK(shares[0].full == shares[0].causal);
}

TEST_CASE("utilization: a record keeps peaks and shares, and results.json names both conventions") {
  record::RunRecord record;
  record.name = "job";
  record.world_size = 1;
  record.predicted.emplace();
  record.predicted->peaks = {kMeasured, kDatasheet};
  record.metrics.emplace();
  record.metrics->flops_per_token = {2e9, 3e9};
  record.metrics->utilization =
      plan::utilizations(1000.0, record.metrics->flops_per_token, record.predicted->peaks, 1);

  const auto text = to_json(record);
  const auto read = record::parse_run_record(text);

  REQUIRE(read);
  CHECK(read->predicted->peaks == record.predicted->peaks);
  CHECK(read->metrics->utilization == record.metrics->utilization);
  CHECK(read->metrics->flops_per_token == record.metrics->flops_per_token);
  const auto json = base::parse_json(text);
  CHECK(json["metrics"]["model_flops_utilization"] == 0.25);
  CHECK(json["predicted"]["peak_flops"] == 8e12);
  const std::string results = record::to_results_json(record, nullptr);
  CHECK(results.find("\"Model FLOPs utilization\"") != std::string::npos);
  CHECK(results.find("\"Model FLOPs utilization, all scores\"") != std::string::npos);
}

TEST_CASE("utilization: a record's peaks may lack members, and one of another type is refused by name") {
  record::RunRecord record;
  record.predicted.emplace();
  record.predicted->peaks = {kMeasured};
  auto json = base::parse_json(to_json(record));
  json["predicted"]["peaks"] = {{{"kind", "measured"}}};
  const auto read = record::parse_run_record(json.dump());
  REQUIRE(read);
  CHECK(read->predicted->peaks == std::vector<PeakRate>{{"measured", 0.0, ""}});
  json["predicted"]["peaks"][0]["flops"] = "many";
  CHECK(record::parse_run_record(json.dump()).error().to_string() ==
        "record.json predicted peaks: \"flops\" is string, not a number");
}
