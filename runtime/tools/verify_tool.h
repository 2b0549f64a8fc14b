// `shardrun-rank verify`: what `shardrun verify` runs. It reads checkpoints whole.
//
// Argument: the folder of a checkpoint, or of several. Thread rule: called once, from a process without threads.
#pragma once

#include <span>

namespace shardrun::tools {

// Says of each checkpoint, newest first, whether it is whole, or what of it is damaged, a line each. Returns the exit code:
// 0 when all are whole, 1 when one is damaged; errors go to stderr on one line.
int run_verify_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
