// Runs a program with our own streams and waits for it, e.g. the run that must come before ours.
//
// Thread rule: call it while no other thread of this process exists.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

// Runs argv[0], an absolute path, and passes the signals of `stop_fd` (a signalfd, or -1) on to it as SIGTERM; it
// also gets SIGTERM when this process dies. With `quiet_stdout` its output goes to our stderr. Returns its exit
// code, or 128 plus the signal that ended it; `stopped`, where there is one, becomes true with the first signal that
// was passed on. `meanwhile` is called about twice a second until the end. kIo when it cannot be started.
base::Result<int> run_child_program(const std::vector<std::string>& argv, int stop_fd, bool quiet_stdout,
                                    bool* stopped = nullptr, const std::function<void()>& meanwhile = {});

}  // namespace shardrun::launcher
