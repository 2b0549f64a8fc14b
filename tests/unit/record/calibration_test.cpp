#include <doctest/doctest.h>

#include "runtime/record/calibration.h"

using namespace shardrun;
using record::Calibration;

namespace {

Calibration example() {
  Calibration c;
  c.measured_at = 1795280049.25;
  c.network_measured_at = 1795280071.5;
  c.shardrun = "0.1.0";
  c.plugin = "shardrun 0.1.0, libfabric 1.17 static";
  c.provider = "shm+tcp";
  c.cpu = "AMD \"EPYC\"";
  c.node_names = {"n1", "n2"};
  c.nodes = 2;
  c.ranks_per_node = 2;
  c.cpus_per_rank = 1;
  c.machines = 1;
  c.cpus_per_node = 2;
  c.memory_bytes = 25276502016;
  c.memory_bytes_per_second = {2e10, 2.5e10, 3e10};
  c.update_seconds_per_parameter = {9e-10, 1e-9, 1.1e-9};
  c.gemms = {{"bf16", 512, {2e11, 2.1e11, 2.2e11}}};
  record::StepProbe step;
  step.micro_batch = 2;
  step.sequence_length = 64;
  step.hidden = 128;
  step.heads = step.kv_heads = 4;
  step.ffn = 352;
  step.vocab = 256;
  step.layer_forward = {1e-3, 1.5e-3, 2e-3};
  c.steps = {step};
  c.collectives = {{"all_gather", "network", 2, 2, 8192, {1e-4, 2e-4, 3e-4}, 5e-5}};
  return c;
}

}  // namespace

TEST_CASE("calibration: what is written is read again, with quotes and half seconds") {
  const auto read = record::parse_calibration(record::to_toml(example()), "c.toml");

  REQUIRE(read);
  CHECK_EQ(record::to_toml(*read), record::to_toml(example()));
  CHECK_EQ(read->cpu, "AMD \"EPYC\"");
  CHECK_EQ(read->measured_at, doctest::Approx(1795280049.25));
  CHECK_EQ(read->node_names, std::vector<std::string>{"n1", "n2"});
  CHECK_EQ(read->collectives.at(0).among, "network");
  CHECK_EQ(read->steps.at(0).layer_forward.high, doctest::Approx(2e-3));
}

TEST_CASE(
    "calibration: another format is refused, and so are unknown keys, wrong types and a file of nothing") {
  const std::string text = record::to_toml(example());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    return record::parse_calibration(changed.replace(at, from.size(), to), "c.toml");
  };

  for (const char* other : {"format_version = 4", "format_version = 6"}) {
    const auto read = with("format_version = 5", other);
    REQUIRE_FALSE(read);
    CHECK_EQ(read.error().code(), base::Code::kUnsupported);
  }
  const auto unknown = with("machines = 1", "machinery = 1");
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().message().starts_with("c.toml:14:"));
  CHECK_FALSE(with("nodes = 2", "nodes = \"2\""));
  CHECK_FALSE(with("median = 2.500000e+10", "median = -1.0"));
  CHECK_FALSE(record::parse_calibration("", "c.toml"));
}

TEST_CASE("calibration: one that lacks what a prediction divides by is refused, and says what it lacks") {
  const std::string text = record::to_toml(example());
  for (const std::string key :
       {"nodes", "ranks_per_node", "cpus_per_rank", "machines", "cpus_per_node", "memory_bytes"}) {
    const size_t at = text.find("\n" + key + " = ") + 1, end = text.find('\n', at);
    const auto read = record::parse_calibration(text.substr(0, at) + text.substr(end + 1), "c.toml");

    REQUIRE_FALSE(read);
    CHECK_EQ(read.error().message(), "c.toml: " + key + " is missing or 0; calibrate again");
  }
}

TEST_CASE("calibration: a spread is the quartiles of its values, whatever their order") {
  const auto spread = record::Spread::of({5, 1, 4, 2, 3});

  CHECK_EQ(spread.low, 2.0);
  CHECK_EQ(spread.median, 3.0);
  CHECK_EQ(spread.high, 4.0);
  CHECK_EQ(record::Spread::of({}).median, 0.0);
}
