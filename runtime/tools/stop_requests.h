// The signals that ask a tool to stop; the tool looks for them between two pieces of work, so that it can clean up.
//
// Thread rule: one at a time, made by a process without threads.
#pragma once

#include <csignal>

#include "runtime/base/io.h"

namespace shardrun::tools {

// Blocks SIGINT, SIGTERM and SIGHUP while it lives; when it is destroyed, the process dies of the signal that came,
// as whoever sent it expects.
class StopRequests {
 public:
  StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
  ~StopRequests();

  bool came();

 private:
  base::UniqueFd fd_;
  sigset_t before_{};
  int signal_ = 0;
};

}  // namespace shardrun::tools
