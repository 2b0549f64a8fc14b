#include "launcher/agent/verdict.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "runtime/base/text.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using record::FirstCause;
using record::RankExit;
using record::RunStatus;

bool is_success(const RankExit& exit) {
  return exit.exit_code == contract::kExitDone;
}

// Returns whether the rank did what a rank does when it is asked to stop and can.
bool is_stop(const RankExit& exit) {
  return exit.exit_code == contract::kExitPreempted;
}

int severity(const RankExit& exit) {
  if (exit.peer_lost) return 3;
  if (exit.signal && *exit.signal != SIGABRT && *exit.signal != SIGPIPE) return 1;
  return 2;
}

// Returns whether the rank ended badly, and not because somebody told it to end.
bool failed_by_itself(const RankExit& exit, bool stop_requested) {
  if (is_success(exit) || is_stop(exit)) return false;
  if (!exit.stopped_on_request) return true;
  if (!stop_requested) return false;  // told to go because of another rank
  const bool of_the_request = exit.signal == SIGTERM || exit.signal == SIGKILL || exit.signal == SIGINT ||
                              exit.signal == SIGHUP || exit.exit_code == 128 + SIGTERM;
  return !of_the_request;
}

const RankExit* find_first_cause(const VerdictInput& input) {
  const RankExit* first = nullptr;
  for (const RankExit& exit : input.exits) {
    if (!failed_by_itself(exit, input.stop_signal.has_value())) continue;
    if (first == nullptr || severity(exit) < severity(*first) ||
        (severity(exit) == severity(*first) && exit.ended < first->ended)) {
      first = &exit;
    }
  }
  return first;
}

std::string how_it_ended(const RankExit& exit) {
  if (exit.peer_lost) return "lost contact to another rank";
  if (exit.out_of_memory == true) {
    return fmt::format("was killed by the kernel for lack of memory, at {:.2f} GiB resident",
                       static_cast<double>(exit.peak_memory_bytes) / (1 << 30));
  }
  if (exit.signal) {
    return fmt::format("was killed by {} (signal {})", contract::signal_name(*exit.signal), *exit.signal);
  }
  return fmt::format("ended with exit code {}", exit.exit_code.value_or(-1));
}

std::string cause_line(const VerdictInput& input, const RankExit& cause) {
  std::string line = fmt::format("rank {} on node {} {}", cause.global_rank, cause.node, how_it_ended(cause));
  if (input.last_step) line += fmt::format(" after step {}", *input.last_step);
  if (!cause.last_words.empty() && !cause.signal) line += ": " + cause.last_words;
  const int64_t others = std::count_if(input.exits.begin(), input.exits.end(), [&](const RankExit& exit) {
    return &exit != &cause && !is_success(exit);
  });
  const bool may_be_memory = cause.signal == SIGKILL && !cause.out_of_memory;
  if (others > 0) line += fmt::format("; {} stopped because of it", base::counted(others, "other rank"));
  if (may_be_memory)
    line += fmt::format("; its cgroup does not say whether memory ran out: dmesg on {} would", cause.node);
  if (cause.signal == SIGBUS && cause.out_of_memory != true)
    line += "; a file that it had mapped was cut short or cannot be read any more, or /dev/shm is full";
  return line;
}

int failure_code(const VerdictInput& input, const RankExit& cause) {
  const bool asks_not_to = std::any_of(input.exits.begin(), input.exits.end(), [](const RankExit& exit) {
    return exit.exit_code == contract::kExitDoNotRequeue;
  });
  if (asks_not_to) return contract::kExitDoNotRequeue;
  if (cause.peer_lost) return contract::kExitInfrastructure;
  if (input.trainer && cause.exit_code == contract::kExitBadInput) return contract::kExitBadInput;
  return contract::kExitProgramFailed;
}

Verdict failed_by(const VerdictInput& input, const RankExit& cause) {
  Verdict verdict;
  verdict.line = cause_line(input, cause);
  verdict.exit_code = failure_code(input, cause);
  verdict.first_cause = FirstCause{cause.peer_lost               ? "peer_lost"
                                   : cause.out_of_memory == true ? "out_of_memory"
                                   : cause.signal                ? "signal"
                                                                 : "exit",
                                   cause.node, cause.global_rank, cause.signal, cause.exit_code};
  return verdict;
}

Verdict found_by_watch(const VerdictInput& input, const WatchFinding& finding) {
  Verdict verdict;
  verdict.exit_code = contract::kExitInfrastructure;
  verdict.line = finding.line;
  if (finding.kind == "node_lost" && input.last_step)
    verdict.line += fmt::format(", after step {}", *input.last_step);
  verdict.first_cause = FirstCause{finding.kind, finding.node, finding.global_rank, {}, {}};
  return verdict;
}

Verdict scheduler_failed(const VerdictInput& input, const std::string& words) {
  Verdict verdict;
  verdict.exit_code = contract::kExitInfrastructure;
  verdict.line = words;
  if (input.last_step) verdict.line += fmt::format(" (after step {})", *input.last_step);
  verdict.first_cause = FirstCause{"scheduler", "", {}, {}, {}};
  return verdict;
}

// Is the verdict when nobody failed by itself and everybody is accounted for.
Verdict ended_quietly(const VerdictInput& input) {
  const auto count = [&](auto predicate) {
    return std::count_if(input.exits.begin(), input.exits.end(), predicate);
  };
  const int64_t stopped = count(is_stop), done = count(is_success), world = input.world_size;
  const std::string by =
      input.stop_signal ? " by " + contract::signal_name(*input.stop_signal) : " on request";
  Verdict verdict;
  if (done == world) {
    verdict.status = RunStatus::kCompleted;
    verdict.exit_code = contract::kExitDone;
    verdict.line = fmt::format("all {} ended well", base::counted(world, "rank"));
    if (input.ended_early) verdict.line += "; " + *input.ended_early;
    if (input.stop_signal) verdict.line += ", after a request to stop" + by;
    return verdict;
  }
  const std::string step = input.last_step ? fmt::format(" after step {}", *input.last_step) : "";
  if (done + stopped == world) {
    verdict.status = RunStatus::kPreempted;
    verdict.exit_code = contract::kExitPreempted;
    verdict.line = fmt::format("stopped{}{}: {} left a checkpoint and may be started again", by, step,
                               base::counted(stopped, "rank"));
    return verdict;
  }
  const int64_t killed = count([](const RankExit& exit) { return exit.signal == SIGKILL; });
  verdict.line = fmt::format("stopped{}{}: {} ended without a checkpoint", by, step,
                             base::counted(world - done - stopped, "rank"));
  if (killed > 0) verdict.line += fmt::format(", {} of them killed because it had not stopped", killed);
  return verdict;
}

}  // namespace

Verdict judge(const VerdictInput& input) {
  const RankExit* cause = find_first_cause(input);
  if (input.finding) {
    const bool was_before = cause != nullptr && !cause->peer_lost && cause->ended < input.finding->detected;
    if (!was_before) return found_by_watch(input, *input.finding);
  }
  if (cause != nullptr && !(input.scheduler_fault && cause->peer_lost)) return failed_by(input, *cause);
  if (input.scheduler_fault) return scheduler_failed(input, *input.scheduler_fault);
  const int64_t silent = input.world_size - static_cast<int64_t>(input.exits.size());
  if (silent > 0 && !input.stop_signal) {
    return scheduler_failed(input, fmt::format("{} of {} left no account of how they ended", silent,
                                               base::counted(input.world_size, "rank")));
  }
  return ended_quietly(input);
}

}  // namespace shardrun::launcher
