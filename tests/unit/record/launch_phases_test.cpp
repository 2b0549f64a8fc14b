#include "runtime/record/launch_phases.h"

#include <doctest/doctest.h>

using namespace shardrun::record;

TEST_CASE("launch phases: what is written is read again") {
  LaunchPhases phases{.global_rank = 17, .begin = 1767323045.00012};
  phases.phases = {{"exec", 1767323045.00047}, {"read_plan", 1767323045.5}};

  const std::string line = to_line(phases);

  CHECK(line == "17 1767323045000120 exec 1767323045000470 read_plan 1767323045500000\n");
  const auto read = parse_launch_phases(line);
  REQUIRE(read.has_value());
  CHECK(read->global_rank == 17);
  REQUIRE(read->phases.size() == 2);
  CHECK(read->phases[1].name == "read_plan");
  CHECK(to_line(*read) == line);
}

TEST_CASE("launch phases: lines that are torn or no such lines are refused") {
  for (const char* line :
       {"", "17", "x 1 exec 2", "17 1767323045000120 exec", "17 1767323045000120 exec soon"})
    CHECK_FALSE_MESSAGE(parse_launch_phases(line).has_value(), line);
}

TEST_CASE(
    "launch phases: a process begins before its first phase ends, and each phase after the one before") {
  LaunchPhases phases = phases_of_this_process();
  phases.mark("exec");
  phases.mark("read_plan");

  CHECK(phases.begin <= phases.phases[0].end);
  CHECK(phases.phases[0].end <= phases.phases[1].end);
}
