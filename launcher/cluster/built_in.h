// Files of cluster-configs that are built into shardrun, so that a binary alone is complete.
//
// The build folder's source of it is made from built_in.cpp.in. Thread rule: pure functions.
#pragma once

#include <string_view>

namespace shardrun::launcher {

// Returns cluster-configs/instances.toml.
std::string_view built_in_instances();

// Returns cluster-configs/on-node.sh.
std::string_view built_in_node_script();

// Returns cluster-configs/network.yaml.
std::string_view built_in_network();

}  // namespace shardrun::launcher
