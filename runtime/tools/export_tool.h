// `shardrun-rank export`: what `shardrun export` runs. It turns a checkpoint into safetensors with Hugging Face's
// names.
//
// Arguments, each as --name=value: checkpoint (a folder of checkpoints, or one of them), output, dtype (bf16,
// fp32), max-shard-bytes; flag --json. shardrun checks them for people; a wrong one is refused here just as well.
// Thread rule: called once, from a process without threads.
#pragma once

#include <span>

namespace shardrun::tools {

// Exports the checkpoint, or the newest one of a folder; a damaged one is named on stderr and the one before it is
// used. Says on stdout what was written. Returns the exit code (contract/exit_code.h); errors go to stderr on one
// line. A signal that asks to stop removes what was begun.
int run_export_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
