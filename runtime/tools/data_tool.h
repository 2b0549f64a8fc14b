// `shardrun-rank data`: what `shardrun data` runs. It turns text files into token files.
//
// Arguments, each as --name=value: tokenizer, output, validation, seed, template; flags --split-on-blank-lines and
// --json; then -- and the files. shardrun checks them for people; a wrong one is refused here just as well.
// Thread rule: called once, from a process without threads.
#pragma once

#include <span>

namespace shardrun::tools {

// Writes OUTPUT/train.tokens and, when a share is held out, OUTPUT/validation.tokens; both or none appear, and an
// existing file is never replaced. Returns the exit code (contract/exit_code.h); errors go to stderr on one line,
// which begins with the file and line where there are any. A signal that asks to stop removes what was begun.
int run_data_tool(std::span<char* const> arguments);

}  // namespace shardrun::tools
