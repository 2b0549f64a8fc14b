// The verb that tells what happened to a run, attempt by attempt.
#include <utility>

#include <fmt/format.h>

#include "launcher/runs/run_state.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

base::Result<int> explain(const std::string& run_name, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto run, find_run(run_name, common));
  ASSIGN_OR_RETURN(auto state, look_at(run));
  if (!state.record) return not_started(state);
  say_unanswered(state);
  const TimelineSources sources = timeline_sources(run, std::move(state));
  const auto entries = make_timeline(sources);
  if (common.json) {
    print_text("{}", timeline_json(entries));
    return contract::kExitDone;
  }
  const record::RunRecord& record = sources.record;
  print_text(fmt::format("{} {}: {}\n{}\n{}", base::visible(record.name), base::visible(record.id),
                         base::visible(sources.status), base::visible(record.verdict),
                         render_timeline(entries)));
  return contract::kExitDone;
}

}  // namespace

void add_explain(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<RunName>();
  CLI::App* verb = app.add_subcommand(
      "explain", "Tell what happened to a run: each attempt, its first cause, what followed");
  add_run_name(*verb, options.run, line, true);
  add_common(*verb, line, true);
  verb->footer("Example:\n  shardrun explain tiny-llama");
  add_host(*verb, line);
  verb->callback(
      [&] { line.end(line.remote.host.empty() ? explain(options.run, line.common) : run_elsewhere(line)); });
}

}  // namespace shardrun::launcher
