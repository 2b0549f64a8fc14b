// `shardrun-rank footprint [PLUGIN PROVIDER NODES RANKS_PER_NODE]`: prints four numbers. The bytes that a rank's process holds on
// this machine before it has allocated anything of its job: the program with its libraries, some compiled products and, with a
// comm plugin, its endpoints. How many those products are; none where products of our own are faster. The bytes that one more
// adds. And what the first of all adds besides, which is what it touches of oneDNN. `shardrun plan` asks it, because the
// libraries of another system, or other versions of them, take as much as they take there.
//
// Thread rule: called once, from the main thread.
#pragma once

#include <span>

namespace shardrun::tools {

// PLUGIN is the plugin's absolute path. Returns an exit code (contract/exit_code.h).
int run_footprint_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
