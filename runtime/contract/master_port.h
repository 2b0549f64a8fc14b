// Where the ranks of a program meet: MASTER_ADDR and MASTER_PORT.
//
// Thread rule: free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/base/result.h"

namespace shardrun::contract {

struct PortRange {
  int low = 32768, high = 60999;  // both inclusive
};

// Returns the ports that the kernel hands out by itself (/proc/sys/net/ipv4/ip_local_port_range).
PortRange ephemeral_ports();
// Reads that file; what are no two ports in order are the kernel's usual ones.
PortRange ports_in(const std::string& text);

// Returns a port ≥ 1024 outside `ephemeral` for which `is_free` holds, spread by `seed` so that jobs on one machine
// rarely want the same one. kIo when none of 1000 tries is free, or when `ephemeral` leaves no port.
base::Result<uint16_t> choose_port(const PortRange& ephemeral, uint64_t seed,
                                   const std::function<bool(uint16_t)>& is_free);

// Returns the address for ranks on `nodes` nodes, the first of which is `first_node`: one machine needs no
// name resolution.
std::string master_address(size_t nodes, const std::string& first_node);

// Says whether this machine can bind the port on all its addresses right now.
bool can_bind(uint16_t port);

}  // namespace shardrun::contract
