// Supervisor: runs one rank's program as a child, files its output, forwards signals, and tells how it ended.
//
//   order       pipes and signalfd, the child, logs, then one poll loop over the pipes, the signals and the child's
//               pidfd. The child runs in our memory until it executes the program, as that of a vfork does: to copy what it is
//               about to leave costs both sides a page fault for each page. A program that cannot be executed ends as in a
//               shell: 127 when it does not exist, 126 when it cannot be run.
//   signals     SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 go to the child's process group. SIGQUIT is ours: kill
//               the child now, but keep its last words (the local scheduler sends it before SIGKILL).
//   the end     the rank's line in <node>.exits is written the moment the child is gone. Then every process that it left behind
//               is killed, whatever session it hides in, and the pipes are read to their end.
//   heartbeat   twice a second to the conductor (watch_link.h), whose order to kill, or whose silence, ends the child, and
//               whose order to signal it is passed on.
//   full disk   lines are lost and counted, the job goes on.
//   slow disk   a thread writes the output (rank_logs.h), and one the rank's line of its end, so that heartbeats and orders do not
//               wait for it.
//   our death   the child gets SIGKILL from the kernel (PR_SET_PDEATHSIG).
//
// Thread rule: call from the only thread of the process, to which the kernel ties the child's death with ours.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/contract/rank_env.h"
#include "runtime/rank/binding.h"
#include "runtime/rank/redaction.h"
#include "runtime/record/launch_phases.h"
#include "runtime/record/run_record.h"

namespace shardrun::rank {

// Each of the two last steps takes at most this long.
inline constexpr std::chrono::milliseconds kDrainTime{300};

struct SupervisorRequest {
  contract::RankEnv env;
  Binding binding;
  // What the child executes, found by PATH, with our environment. An error: the rank's stderr gets it, and nothing is started.
  base::Result<std::vector<std::string>> program;
  // Shared with the child, which notes its progress there; may be null. The child inherits the descriptor.
  contract::ProgressPage* progress = nullptr;
  int progress_fd = -1;
  // A file that the program touches to show that it is alive; empty: only its output shows that.
  std::string heartbeat_file;
  // The secrets that no log may show.
  std::vector<Secret> secrets;
  // How long the conductor may be dead until the program is ended; 0: the scheduler ends it.
  std::chrono::seconds conductor_timeout{0};
  // Gets what is done when; may be null.
  record::LaunchPhases* phases = nullptr;
  // How much of its output is kept; 0: all.
  int64_t output_limit_bytes = 0;
  // An exit with kExitInfrastructure means that a peer was lost: true for the built-in trainer.
  bool exit_4_is_peer_lost = false;
};

// kIo when the child could not be made.
base::Result<record::RankExit> supervise(const SupervisorRequest& request);

// Ends this process.
[[noreturn]] void end_with(int code);
// Ends this process as the child ended: with its exit code, or by the same signal. Does not return.
[[noreturn]] void end_like(const record::RankExit& exit);

}  // namespace shardrun::rank
