#include <doctest/doctest.h>

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
      forecast_json(report),
      "{\"kind\": \"prediction\", \"software\": \"fsdp\", \"scaling\": \"strong\", \"lines\": [{\"machine\": "
      "\"p4d.24xlarge\", \"nodes\": 3, \"accelerators\": 24, \"global_batch\": 0, \"combinations\": 0, "
      "\"reasons\": [\"does not divide\"]}]}");
  CHECK_EQ(forecast_svg(report), "");
}
