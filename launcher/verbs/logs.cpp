#include <unistd.h>

#include <chrono>
#include <thread>

#include "launcher/verbs/command_line.h"
#include "launcher/verbs/run_state.h"
#include "launcher/view/follower.h"
#include "launcher/view/progress.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

struct LogsOptions {
  std::string run;
  bool follow = false;
  int rank = -1;
  std::string node;
};

int logs(const LogsOptions& options, const CommonOptions& common) {
  auto run = find_run(options.run, common);
  if (!run) return fail(run.error(), common);
  FollowOptions follow;
  follow.terminal = ::isatty(STDOUT_FILENO) == 1;
  follow.columns = terminal_columns(STDOUT_FILENO);
  follow.only_rank = options.rank;
  follow.only_node = options.node;
  bool broken = false;
  Follower follower(*run, follow, [&](const std::string& text) {
    broken = broken || !base::write_all(STDOUT_FILENO, text, "standard output");
  });
  RunWatcher watcher(*run);
  while (options.follow && !broken) {
    const auto state = watcher.look();  // asked first: what came before the end is still shown
    const bool over = !state || is_over(*state);
    follower.poll();
    if (over) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  follower.finish();
  return contract::kExitDone;
}

}  // namespace

void add_logs(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<LogsOptions>();
  CLI::App* verb = app.add_subcommand("logs", "Show the logs of all nodes of a run, in time order");
  add_run_name(*verb, options.run, line, true);
  verb->add_flag("-f,--follow", options.follow, "Go on until the run ends");
  verb->add_option("--rank", options.rank, "Only this global rank")->check(CLI::NonNegativeNumber);
  verb->add_option("--node", options.node, "Only this node");
  add_common(*verb, line, false);
  verb->footer("Example:\n  shardrun logs -f tiny-llama --rank 0");
  verb->callback([&] { line.exit_code = logs(options, line.common); });
}

}  // namespace shardrun::launcher
