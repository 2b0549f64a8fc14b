#include "launcher/agent/attached_ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "launcher/schedule/stop_words.h"
#include "runtime/contract/exit_code.h"
#include "runtime/record/exit_lines.h"

namespace shardrun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{200};  // how often accounts are looked for
constexpr int kLookShare = 5;       // at most one part of so many of the time goes by with that
// How long a supervisor has to kill its program and leave an account of it.
constexpr milliseconds kAccountTime{3000};

class AttachedRanks {
 public:
  AttachedRanks(Watch& watch, const StepRequest& step, const record::RunDir& run)
      : watch_(watch),
        step_(step),
        run_(run),
        has_ended_(static_cast<size_t>(step.plan->world_size())),
        back_by_(steady_clock::now() +
                 milliseconds(static_cast<int64_t>(1000.0 * return_seconds(step.spec->fault_tolerance)))) {}

  StepOutcome wait() {
    while (true) {
      const auto begun = steady_clock::now();
      look_for_accounts();
      const auto took = std::chrono::ceil<milliseconds>(steady_clock::now() - begun);
      const bool all = std::all_of(has_ended_.begin(), has_ended_.end(), [](bool ended) { return ended; });
      const auto now = steady_clock::now();
      if (all || (give_up_at_ && now >= *give_up_at_)) return std::move(outcome_);
      if (kill_at_ && now >= *kill_at_) kill();
      pollfd fds[2] = {{step_.stop_fd, POLLIN, 0}, {alarmed_ ? -1 : step_.alarm_fd, POLLIN, 0}};
      if (::poll(fds, 2, static_cast<int>(std::max(kLook, kLookShare * took).count())) <= 0) continue;
      if (fds[0].revents != 0) on_stop_request();
      if (fds[1].revents != 0) on_alarm();
    }
  }

 private:
  void look_for_accounts() {
    for (const auto& [rank, exit] : record::read_rank_exits(run_, step_.attempt)) {
      const auto index = static_cast<size_t>(rank);
      if (rank < 0 || index >= has_ended_.size() || has_ended_[index]) continue;
      has_ended_[index] = true;
      const bool asked = outcome_.stop_signal && contract::ended_as_asked(exit);
      if (!asked && exit.exit_code != 0) end_others();
    }
  }

  // A rank has failed: the rest are told to go.
  void end_others() {
    if (is_ending_) return;
    is_ending_ = true;
    watch_.order_signal(SIGTERM);
    kill_in(kKillGrace);
  }

  void on_stop_request() {
    signalfd_siginfo info{};
    if (::read(step_.stop_fd, &info, sizeof info) != sizeof info) return;
    const auto now = steady_clock::now();
    if (!outcome_.stop_signal) {
      outcome_.stop_signal = static_cast<int>(info.ssi_signo);
      stop_requested_ = now;
      tell_of_stop(step_, *outcome_.stop_signal);
      watch_.order_signal(SIGTERM);
      kill_in(step_.spec->fault_tolerance.stop_grace);
    } else if (now - stop_requested_ >= kOneRequest && !give_up_at_) {
      tell_of_second_stop();
      kill();
    }
  }

  // The watch has given the order to kill.
  void on_alarm() {
    alarmed_ = true;
    if (!give_up_at_) give_up_at_ = steady_clock::now() + kAccountTime;
  }

  void kill_in(milliseconds time) {
    const auto at = steady_clock::now() + time;
    if (!kill_at_ || at < *kill_at_) kill_at_ = at;
  }

  void kill() {
    kill_at_.reset();
    if (give_up_at_) return;
    watch_.order_kill("the job ends");
    give_up_at_ = std::max(steady_clock::now(), back_by_) + kAccountTime;
  }

  Watch& watch_;
  const StepRequest& step_;
  const record::RunDir& run_;
  std::vector<bool> has_ended_;
  steady_clock::time_point back_by_, stop_requested_;
  std::optional<steady_clock::time_point> kill_at_, give_up_at_;
  bool alarmed_ = false, is_ending_ = false;
  StepOutcome outcome_;
};

}  // namespace

double return_seconds(const spec::FaultToleranceSpec& faults) {
  return 10.0 + 2.0 * static_cast<double>(faults.node_timeout.count());
}

StepOutcome wait_for_ranks(Watch& watch, const StepRequest& step, const record::RunDir& run) {
  return AttachedRanks(watch, step, run).wait();
}

}  // namespace shardrun::launcher
