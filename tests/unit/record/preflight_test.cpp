#include "runtime/record/preflight.h"

#include <doctest/doctest.h>

using namespace shardrun::record;

TEST_CASE("preflight: a node's facts survive their file") {
  NodeFacts facts;
  facts.node = "n1";
  facts.checkpoint_folder = "/fsx";
  facts.free_bytes = int64_t{1} << 50;
  facts.needed_bytes = 7;
  facts.gpus = {{0, "H200", {}}, {1, "H200", {"lost"}}};
  facts.variables = {{"FI_PROVIDER", "efa"}};
  facts.network_error = "lost rank 3";
  facts.network_ranks = {3};

  const auto read = parse_node_facts(to_json(facts));

  REQUIRE(read.has_value());
  CHECK(read->node == "n1");
  CHECK(read->free_bytes == int64_t{1} << 50);
  REQUIRE(read->gpus.size() == 2);
  CHECK(read->gpus[1].faults == std::vector<std::string>{"lost"});
  CHECK(read->variables.at("FI_PROVIDER") == "efa");
  CHECK(read->network_error == "lost rank 3");
  CHECK(read->network_ranks == std::vector<int>{3});
}

TEST_CASE("preflight: what was measured survives its file, and a damaged file is refused") {
  Measurement measured;
  measured.provider = "shm+tcp";
  measured.ranks = 8;
  measured.bytes_per_second = 1.5e9;
  measured.clocks = {{"n1", -0.5, 0.25}};
  measured.pairs = {{"n1", "n2", 3.0}};

  const auto read = parse_measurement(to_json(measured));

  REQUIRE(read.has_value());
  CHECK(read->ranks == 8);
  CHECK(read->bytes_per_second == 1.5e9);
  CHECK(read->clocks.at(0).high == 0.25);
  CHECK(read->pairs.at(0).right == "n2");
  CHECK_FALSE(parse_measurement("{}").has_value());
  CHECK_FALSE(parse_node_facts("{\"node\": 3}").has_value());
  CHECK_FALSE(parse_node_facts("").has_value());
}

TEST_CASE("preflight: a node is as fast as the better of its two pairs") {
  const std::vector<PairBandwidth> ring = {{"a", "b", 9.0}, {"b", "c", 1.0}, {"c", "a", 2.0}};
  const auto nodes = node_bandwidths(ring);
  REQUIRE(nodes.size() == 3);
  CHECK(nodes[0].bytes_per_second == 9.0);
  CHECK(nodes[1].bytes_per_second == 9.0);
  CHECK(nodes[2].bytes_per_second == 2.0);
  CHECK(median_bandwidth(nodes) == 9.0);
  CHECK(any_stands_out(ring, 0.5));
  CHECK_FALSE(any_stands_out(ring, 0.2));
  CHECK_FALSE(any_stands_out({}, 0.5));
}
