// The verb that tells what happened to a run, attempt by attempt.
#include <fmt/format.h>

#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "launcher/verbs/run_state.h"
#include "launcher/view/timeline.h"
#include "runtime/base/io.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

std::vector<record::RankExit> exits_of(const record::RunDir& run, int attempt, int world_size) {
  std::vector<record::RankExit> exits;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto text = base::read_file(run.rank_exit(attempt, rank));
    if (!text) continue;
    if (auto exit = record::parse_rank_exit(*text)) exits.push_back(std::move(*exit));
  }
  return exits;
}

int explain(const std::string& run_name, const CommonOptions& common) {
  auto run = find_run(run_name, common);
  if (!run) return fail(run.error(), common);
  auto record = find_record(*run);
  if (!record) return fail(not_started_or(*run, record.error()), common);
  TimelineSources sources;
  sources.record = std::move(*record);
  if (auto text = base::read_file(run->events_jsonl())) sources.events = std::move(*text);
  if (auto text = base::read_file(run->metrics_jsonl())) sources.metrics = std::move(*text);
  for (const record::Attempt& attempt : sources.record.attempts) {
    const int world_size = attempt.world_size > 0 ? attempt.world_size : sources.record.world_size;
    sources.exits.push_back(exits_of(*run, attempt.number, world_size));
  }
  const auto entries = make_timeline(sources);
  if (common.json) {
    fmt::print("{}", timeline_json(entries));
    return contract::kExitDone;
  }
  fmt::print("{} {}: {}\n{}\n{}", sources.record.name, sources.record.id, status_and_code(sources.record),
             sources.record.verdict, render_timeline(entries));
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
  verb->callback([&] {
    line.exit_code = line.remote.host.empty() ? explain(options.run, line.common) : run_elsewhere(line);
  });
}

}  // namespace shardrun::launcher
