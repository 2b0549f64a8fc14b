// shardrun-rank precompile: the specialised kernels of a job, compiled by all who call this with the same cache.
//
// Thread rule: call from main.
#pragma once

#include <span>

namespace shardrun::tools {

// SPEC [--retry] [OVERRIDE…]: as a rank of a job (its place then says how many share the node's compilers) or alone.
// --retry compiles again what did not compile before. Prints one line; returns an exit code.
int run_precompile_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
