// How many nodes are named in one argument.
#include "launcher/schedule/slurm/node_ranges.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using shardrun::launcher::node_ranges;

namespace {

std::string ranges(const std::vector<std::string>& names) {
  return node_ranges(names);
}

}  // namespace

TEST_CASE("node ranges: neighbours share a bracket, whatever order they come in") {
  CHECK_EQ(ranges({"n3", "n1", "n2", "n7"}), "n[1-3,7]");
  CHECK_EQ(ranges({"q1-dy-p5-1", "q1-dy-p5-2", "q1-st-p5-1"}), "q1-dy-p5-[1-2],q1-st-p5-1");
}

TEST_CASE(
    "node ranges: numbers with zeros in front keep their width, and are other names than those without") {
  CHECK_EQ(ranges({"n009", "n010", "n9", "n10"}), "n[9-10],n[009-010]");
  CHECK_EQ(ranges({"n0", "n1"}), "n[0-1]");
}

TEST_CASE("node ranges: names without a number, or with one that is too long, stand alone") {
  CHECK_EQ(ranges({"head", "n1"}), "head,n1");
  CHECK_EQ(ranges({"n12345678901"}), "n12345678901");
  CHECK_EQ(ranges({"42"}), "42");
  CHECK_EQ(ranges({}), "");
}

TEST_CASE("node ranges: as many nodes as Slurm has are one short word") {
  std::vector<std::string> names;
  for (int node = 1; node <= 65533; ++node) names.push_back("compute-dy-p5-" + std::to_string(node));
  CHECK_EQ(node_ranges(names), "compute-dy-p5-[1-65533]");
}
