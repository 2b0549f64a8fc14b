// What a rank tells the others about itself, as bytes for the host to exchange, and how it picks its network address.
//
// Thread rule: free functions and values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugins/common/keyed_hash.h"
#include "plugins/ofi/status.h"

namespace shardrun::ofi {

struct EndpointAddress {
  std::string provider;
  std::vector<std::byte> bytes;
};

struct RankAddress {
  uint64_t cookie = 0;   // random; names the rank's bell and shared memory, so it is public on the node
  common::Key secret{};  // random; the job's key is made of all ranks'
  uint32_t ipv4 = 0;     // network byte order
  uint16_t liveness_port = 0;
  std::vector<EndpointAddress> endpoints;
};

std::vector<std::byte> pack(const RankAddress& address);
// INVALID if the bytes are not of this plugin and version.
Status unpack(std::span<const std::byte> bytes, RankAddress* address);

// Chooses the IPv4 address at which this rank can be reached: that of `interface_name` if it is given; 127.0.0.1 if
// `one_node` and loopback is up; else that of the interface with the default route; else that of the first interface
// that is up and is neither loopback nor a local bridge (docker, virbr); loopback as the last resort. INVALID names
// an interface that has no address.
Status choose_ipv4(const std::string& interface_name, bool one_node, uint32_t* ipv4);

// Returns the name of the interface with the default route of /proc/net/route; empty if there is none. A route to half of all
// addresses, as some VPNs have it, is none.
std::string default_route_interface(const std::string& routes);

// Returns the key that only those know who have all ranks' addresses as they were exchanged.
common::KeyedHash job_key(const std::vector<RankAddress>& ranks);

std::string ipv4_text(uint32_t ipv4);
uint64_t random_cookie();

}  // namespace shardrun::ofi
