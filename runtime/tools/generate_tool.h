// shardrun-rank generate: a model goes on with a text, or answers a question, and writes what it says as it says it.
//
// Thread rule: main thread only.
#pragma once

#include <span>

namespace shardrun::tools {

// `arguments` are those behind "generate". Returns the exit code.
int run_generate_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
