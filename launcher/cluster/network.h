// The network of a cluster by CloudFormation (cluster-configs/network.yaml): what `shardrun cluster create --network ZONE` asks
// the `aws` command for, and what comes back.
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/cluster/spec.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct Network {
  std::string public_subnet, private_subnet;
};

// Returns the name of a cluster's stack.
std::string network_stack(const std::string& cluster);

// Return argument vectors. Making a stack that is there changes what differs, and waits until it is done; deleting one
// that is not there does nothing.
std::vector<std::string> make_network_command(const std::string& cluster, const std::string& zone,
                                              const std::string& template_file, const std::string& region);
std::vector<std::string> ask_network_command(const std::string& cluster, const std::string& region);
std::vector<std::string> delete_network_command(const std::string& cluster, const std::string& region);

// Parses the answer to ask_network_command(). Errors: kCorrupt with what it lacks.
base::Result<Network> parse_network(std::string_view json);

// Puts the head and login nodes into the public subnet and all queues into the private one.
void use_network(const Network& network, ClusterConfig& config);

}  // namespace shardrun::launcher
