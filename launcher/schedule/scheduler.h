// Scheduler: starts all ranks of one attempt and says how each ended. The conductor drives it and knows nothing
// of Slurm or PMIx. Implementations: local (PMIx server inside this process), slurm (srun), and the tests' fake.
//
// Contract of run():
//   effect    starts world_size copies of plan.rank_program, one a rank, with the environment of
//             runtime/contract/rank_env.h; returns when no process of the attempt is left on any node.
//   failing   when one rank ends with a signal or a non-zero code, the rest are told to go (SIGTERM is useless to
//             a rank in a dead collective, so SIGKILL follows after kKillGrace) and run() returns within 2 s.
//   stopping  `stop_fd` (a signalfd) becomes readable when we are asked to stop (SIGTERM, SIGINT, SIGHUP, SIGUSR1,
//             SIGUSR2): SIGTERM is forwarded to every rank once, SIGKILL after the spec's stop_grace, or at once on
//             a second request.
//   alarm     `alarm_fd` becomes readable when the attempt must end now (launcher/watch): as failing, but a rank or a
//             whole node may never answer again, and run() must still return within 3 s.
//   errors    an Error only when the ranks could not be started at all (nothing is left running).
// Thread rule: one thread calls; an implementation may own helper threads.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/record/launch_plan.h"
#include "runtime/record/run_record.h"
#include "runtime/spec/job_spec.h"

namespace shardrun::launcher {

// Two stop signals closer than this are one request.
inline constexpr std::chrono::milliseconds kOneRequest{100};
// From SIGTERM to SIGKILL when another rank has failed.
inline constexpr std::chrono::milliseconds kKillGrace{500};

struct StepRequest {
  const spec::JobSpec* spec = nullptr;
  const record::LaunchPlan* plan = nullptr;
  int attempt = 0;
  std::vector<std::string> arguments;  // arguments of the rank program; empty: it is a rank
  std::vector<std::string> nodes;      // host names, in node_index order
  std::string master_addr;
  uint16_t master_port = 0;
  double launch_time = 0.0;  // Unix seconds
  int stop_fd = -1;          // signalfd, borrowed; -1: nobody can stop us
  int alarm_fd = -1;         // eventfd, borrowed; -1: nobody watches
};

struct StepOutcome {
  std::vector<record::RankExit> exits;  // one per rank that is known to have ended
  // The first line that the rank program said itself, on the stream of the command that started it: what is known of a rank that
  // could leave no account, because a library of it is missing on the node or it cannot write there.
  std::string rank_words;
  std::optional<std::string> scheduler_fault;  // the scheduler's own words when it, not a rank, failed
  std::optional<int> stop_signal;              // the signal that asked us to stop
  std::vector<std::string> unreachable;        // nodes on which no rank could be started
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // Returns the host names of all nodes that this process may use, at least plan.nodes; the conductor chooses among
  // them, in order.
  virtual base::Result<std::vector<std::string>> nodes(const record::LaunchPlan& plan) = 0;
  virtual base::Result<StepOutcome> run(const StepRequest& request) = 0;
};

}  // namespace shardrun::launcher
