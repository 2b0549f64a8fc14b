// A program with our own streams that we wait for, e.g. the run that must come before ours.
//
// Thread rule: called while no other thread of this process exists.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace shardrun::launcher {

// Runs argv[0], an absolute path, with the signals of `stop_fd` (a signalfd, or -1) passed on to it as SIGTERM; it gets
// SIGTERM, too, when this process dies. With `quiet_stdout` its output goes to our stderr. Returns its exit code, 128 and the
// signal when one ended it. kIo when it cannot be started.
base::Result<int> run_child_program(const std::vector<std::string>& argv, int stop_fd, bool quiet_stdout);

}  // namespace shardrun::launcher
