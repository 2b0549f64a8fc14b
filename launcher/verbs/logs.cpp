#include <unistd.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/runs/run_state.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "launcher/verbs/logs.h"
#include "launcher/view/follower.h"
#include "launcher/view/progress.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

struct LogsOptions {
  std::string run;
  bool follow = false;
  LogFilter filter;
};

FollowOptions options_of(const LogFilter& filter) {
  FollowOptions follow;
  follow.terminal = look_at_terminal(STDOUT_FILENO, contract::process_environment());
  follow.only_rank = filter.rank;
  follow.only_node = filter.node;
  return follow;
}

base::Result<int> logs(const LogsOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto run, find_run(options.run, common));
  const auto has_rank = [&](const record::LaunchPlan& plan) {
    return options.filter.rank < plan.world_size();
  };
  if (auto plan = read_plan(run); plan && options.filter.rank >= 0 && !has_rank(*plan)) {
    return base::Error(base::Code::kInvalid,
                       fmt::format("--rank {}: the run has ranks 0 to {}; name one of them",
                                   options.filter.rank, plan->world_size() - 1));
  }
  if (auto record = find_record(run); record && !options.filter.node.empty()) {
    std::set<std::string> nodes(record->nodes.begin(), record->nodes.end());
    for (const record::Attempt& attempt : record->attempts)  // those that it has lost, too
      nodes.insert(attempt.nodes.begin(), attempt.nodes.end());
    if (nodes.count(options.filter.node) == 0) {
      return base::Error(base::Code::kInvalid, fmt::format("--node {}: the run has {}; name one of them",
                                                           options.filter.node, fmt::join(nodes, ", ")));
    }
  }
  if (options.follow) return follow_run(run, options.filter);
  Follower(run, options_of(options.filter), [](const std::string& text) { write_out(text); }).finish();
  return contract::kExitDone;
}

}  // namespace

base::Result<int> follow_run(const record::RunDir& run, const LogFilter& filter) {
  bool broken = false;
  const FollowOptions options = options_of(filter);
  Follower follower(run, options,
                    [&](const std::string& text) { broken = !write_out(text) || !flush_out(); });
  RunWatcher watcher(run);
  std::string waiting;     // what was said last of a run that has not started
  std::string unanswered;  // why Slurm did not answer, as it was said last
  // While Slurm is silent, what the run writes is shown all the same.
  const auto meanwhile = [&] {
    follower.poll();
    return !broken;
  };
  while (!broken) {
    const auto state = watcher.look(meanwhile);  // asked first: what came before the end is still shown
    if (!state) {
      follower.finish();
      return state.error();
    }
    follower.poll();
    if (is_over(*state)) {
      follower.finish();
      print_text("\n{}\n", base::visible(end_line(*state)));
      return exit_code_of(*state);
    }
    if (state->unanswered != unanswered) {
      unanswered = state->unanswered;
      say_unanswered(*state);
    }
    if (unanswered.empty() && !state->record && state->status != waiting &&
        !state->status.starts_with("running")) {
      waiting = state->status;
      say_error(fmt::format("shardrun: {} {} waits: {}\n", base::visible(state->plan.name),
                            base::visible(state->plan.id), base::visible(waiting)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return contract::kExitDone;
}

void add_logs(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<LogsOptions>();
  CLI::App* verb = app.add_subcommand("logs", "Show the logs of all nodes of a run, in time order");
  add_run_name(*verb, options.run, line, true);
  verb->add_flag("-f,--follow", options.follow,
                 "Go on until the run ends, then say how; the exit code is the run's");
  verb->add_option("--rank", options.filter.rank, "Only this global rank")->check(CLI::Range(0, 1 << 24));
  verb->add_option("--node", options.filter.node, "Only this node");
  add_common(*verb, line, false);
  verb->footer("Example:\n  shardrun logs -f tiny-llama --rank 0");
  add_host(*verb, line);
  add_kubernetes(*verb, line);
  verb->callback([&] {
    line.end(!line.name_space.empty()   ? kubernetes_logs(options.run, options.follow, line)
             : line.remote.host.empty() ? logs(options, line.common)
                                        : run_elsewhere(line));
  });
}

}  // namespace shardrun::launcher
