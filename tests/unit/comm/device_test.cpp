#include "plugins/ofi/device.h"

#include <doctest/doctest.h>

#include <vector>

using namespace shardrun::ofi;

namespace {

// Returns what each rank of a node with so many ranks uses.
std::vector<std::string> chosen(const std::vector<Device>& devices, uint32_t ranks) {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    names.push_back(devices[choose_device(devices, rank, ranks)].name);
  return names;
}
using Names = std::vector<std::string>;

const std::vector<Device> kFour = {
    {"c", true, 0xa0}, {"a", true, 0x10}, {"d", true, 0xc0}, {"b", true, 0x20}, {"a", true, 0x10}};

}  // namespace

TEST_CASE("devices: ranks get those of their side of the machine, each its own where there are enough") {
  CHECK(chosen(kFour, 4) == Names{"a", "b", "c", "d"});
  CHECK(chosen(kFour, 2) == Names{"a", "c"});
  CHECK(chosen(kFour, 8) == Names{"a", "a", "b", "b", "c", "c", "d", "d"});
  CHECK(chosen(kFour, 1) == Names{"a"});
  CHECK(chosen(kFour, 3) == Names{"a", "b", "c"});
}

TEST_CASE("devices: what the provider names first is used where a place or a rank is unknown") {
  std::vector<Device> some = kFour;
  some[4].on_bus = false;
  CHECK(choose_device(some, 3, 4) == 0);
  CHECK(choose_device(kFour, 0, 0) == 0);
  CHECK(choose_device(kFour, 4, 4) == 0);
}

TEST_CASE("devices: two ports of one card are two devices") {
  const std::vector<Device> ports = {{"port 2", true, 0x10}, {"port 1", true, 0x10}};
  CHECK(chosen(ports, 2) == Names{"port 1", "port 2"});
}
