#include "plugins/ofi/address.h"

#include <doctest/doctest.h>

#include <string>

using shardrun::ofi::default_route_interface;

namespace {

const std::string kHead =
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

std::string route(const std::string& name, const std::string& destination, const std::string& mask) {
  return name + "\t" + destination + "\t0101A8C0\t0003\t0\t0\t100\t" + mask + "\t0\t0\t0\n";
}

}  // namespace

TEST_CASE("routes: the default route is the one to all addresses, and not that to half of them before it") {
  CHECK(default_route_interface(kHead + route("eth0", "0001A8C0", "00FFFFFF") +
                                route("eth1", "00000000", "00000000")) == "eth1");
  CHECK(default_route_interface(kHead + route("tun0", "00000000", "00000080") +
                                route("eth0", "00000000", "00000000")) == "eth0");
  CHECK(default_route_interface(kHead + route("eth0", "0001A8C0", "00FFFFFF")) == "");
  CHECK(default_route_interface(kHead + "eth0\t00000000\n") == "");
  CHECK(default_route_interface("") == "");
}
