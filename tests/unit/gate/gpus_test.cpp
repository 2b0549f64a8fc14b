#include "runtime/gate/gpus.h"

#include <doctest/doctest.h>

using namespace shardrun::gate;

TEST_CASE("gpus: healthy ones have no faults, and what a GPU does not count is none") {
  const auto gpus =
      parse_gpus("0, NVIDIA H200, GPU-a, 0, Not Active\n1, NVIDIA L4, GPU-b, [N/A], Not Active\n",
                 "GPU-a, No, No\nGPU-b, [N/A], [N/A]\n");

  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].name == "NVIDIA H200");
  CHECK(gpus[0].faults.empty());
  CHECK(gpus[1].index == 1);
  CHECK(gpus[1].faults.empty());
}

TEST_CASE("gpus: memory errors, rows that wait or failed, and hardware slowdown are faults, each in words") {
  const auto gpus = parse_gpus(
      "3, NVIDIA H100, GPU-c, 7, Active\n4, NVIDIA H100, GPU-d, 0, Not Active\n5, NVIDIA H100, GPU-e, 0, "
      "Active\n",
      "GPU-c, Yes, Yes\nGPU-d, 0, 1\n");

  REQUIRE(gpus.size() == 3);
  CHECK(gpus[0].index == 3);
  REQUIRE(gpus[0].faults.size() == 4);
  CHECK(gpus[0].faults[0] == "7 uncorrected memory errors");
  CHECK(gpus[1].faults == std::vector<std::string>{"a row of its memory could not be remapped"});
  CHECK(gpus[2].faults == std::vector<std::string>{"slowed down by its hardware (heat or power)"});
}

TEST_CASE("gpus: one that the driver has lost is a fault, also where only names were asked for") {
  CHECK(parse_gpus("0, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n").at(0).faults.size() ==
        1);
  CHECK(parse_gpus("0, [Unknown Error]\n").at(0).faults.size() == 1);
  CHECK(parse_gpus("0, NVIDIA H200\n").at(0).faults.empty());
}

TEST_CASE("gpus: no lines are no GPUs") {
  CHECK(parse_gpus("").empty());
  CHECK(parse_gpus("\n\n").empty());
}
