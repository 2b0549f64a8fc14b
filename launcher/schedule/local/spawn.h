// Process tree: starts a rank's process from a launcher that has threads, and makes sure that nothing below us is left.
//
// Thread rule: one thread calls.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

struct Process {
  pid_t pid = -1;
  base::UniqueFd pidfd;
};

// Starts argv[0] in its own session with exactly this environment ("NAME=value"), with no signal blocked or
// ignored, /dev/null as stdin and nothing open but the three standard streams. It uses posix_spawn, which is safe
// in a process with threads. kIo names the program.
base::Result<Process> start_process(const std::vector<std::string>& argv,
                                    const std::vector<std::string>& environment);

}  // namespace shardrun::launcher
