// Files of cluster-configs that are built into shardrun, so that a binary alone is complete.
//
// built_in.cpp.in becomes the source of it, in the build folder. Thread rule: pure functions.
#pragma once

#include <string_view>

namespace shardrun::launcher {

// cluster-configs/instances.toml.
std::string_view built_in_instances();

}  // namespace shardrun::launcher
