#include <signal.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "launcher/agent/conductor_lock.h"
#include "launcher/runs/run_state.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

// How long Slurm may take to say whether a run is over, before it is asked to cancel the job all the same.
constexpr auto kPatience = std::chrono::seconds(5);

using GoesOn = std::function<bool()>;

// The run that a name means here: of several with this name, the one that is not over. Which of two is to be stopped is not for
// us to guess.
base::Result<record::RunDir> find_run_to_stop(const std::string& name, const CommonOptions& common,
                                              const GoesOn& goes_on) {
  ASSIGN_OR_RETURN(auto newest, find_run(name, common));
  std::vector<record::RunDir> open;
  std::string list;
  if (name.find('/') == std::string::npos && name != "." && name != "..") {
    RunsLook look(goes_on);
    for (const record::RunDir& run : runs_named(name, common)) {
      const auto state = look.at(run);
      if (!state || is_over(*state)) continue;
      list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", state->plan.id, state->status);
      open.push_back(run);
    }
  }
  if (open.size() > 1) {
    return base::Error(
        base::Code::kInvalid,
        fmt::format("{} runs of \"{}\" are not over: {}; name one by its id", open.size(), name, list));
  }
  return open.empty() ? newest : open.front();
}

// Says of a run of which nothing is left to be stopped how it ended, and what there is to do with it.
base::Error is_over_already(const RunState& state, const std::string& name) {
  const bool goes_on = state.status.starts_with("interrupted") || state.status.starts_with("preempted");
  const bool completed = state.record && state.record->status == record::RunStatus::kCompleted;
  const std::string next = goes_on     ? "go on with it by `shardrun resume "
                           : completed ? "see what came out with `shardrun results "
                                       : "see what happened with `shardrun explain ";
  return base::Error(
      base::Code::kRefused,
      fmt::format("{} {} is over already, {}; {}{}`", state.plan.name, state.plan.id,
                  state.status.starts_with("interrupted") ? end_line(state) : state.status, next, name));
}

// Asks Slurm to cancel the job, and says what is known where it does not answer.
base::Result<void> cancel_in_slurm(const RunState& state) {
  const std::string& id = state.plan.id;
  if (!state.unanswered.empty())
    warn({fmt::format(
        "Slurm does not answer, so whether {} is over is not known: {}; scancel is tried all the same, "
        "for half a minute at most",
        id, state.unanswered)});
  auto cancelled = cancel_job(id);
  if (cancelled || state.unanswered.empty()) return cancelled;
  return base::Error(
      cancelled.error().code(),
      fmt::format("whether Slurm cancels {} is not known: {}; cancel it again when `squeue` answers", id,
                  cancelled.error().message()));
}

base::Result<int> cancel(const std::string& run_name, const CommonOptions& common) {
  const GoesOn goes_on = [until = std::chrono::steady_clock::now() + kPatience] {
    return std::chrono::steady_clock::now() < until;
  };
  ASSIGN_OR_RETURN(auto run, find_run_to_stop(run_name, common, goes_on));
  ASSIGN_OR_RETURN(auto state, RunWatcher(run).look(goes_on));
  if (is_over(state)) return is_over_already(state, run_name);
  if (state.plan.scheduler == "slurm") {
    RETURN_IF_ERROR(cancel_in_slurm(state));
    print_text("asked Slurm to cancel job {}\n", base::visible(state.plan.id));
    return contract::kExitDone;
  }
  ASSIGN_OR_RETURN(const auto holder, read_holder(run));
  if (auto signalled = signal_holder(holder, SIGTERM); !signalled) return signalled.error().context(run.root);
  print_text("asked process {} to stop the run\n", holder.pid);
  return contract::kExitDone;
}

}  // namespace

void add_cancel(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<RunName>();
  CLI::App* verb = app.add_subcommand("cancel", "Stop a run: its ranks are asked to checkpoint and end");
  add_run_name(*verb, options.run, line, true);
  add_common(*verb, line, false);
  verb->footer("Example:\n  shardrun cancel tiny-llama");
  add_host(*verb, line);
  add_kubernetes(*verb, line);
  verb->callback([&] {
    line.end(!line.name_space.empty()   ? kubernetes_cancel(options.run, line)
             : line.remote.host.empty() ? cancel(options.run, line.common)
                                        : run_elsewhere(line));
  });
}

}  // namespace shardrun::launcher
