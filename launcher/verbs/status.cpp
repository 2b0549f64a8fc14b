#include <filesystem>

#include <fmt/format.h>

#include "launcher/runs/run_state.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "launcher/verbs/run_sample.h"
#include "launcher/verbs/sweep.h"
#include "launcher/view/progress.h"
#include "launcher/view/prometheus.h"
#include "runtime/base/unix_time.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

std::string head() {
  return fmt::format("{:<20} {:<30} {:<9} {:<11} {:>8} {:>9}  {}\n", "name", "id", "scheduler", "nodes×ranks",
                     "step", "loss", "status");
}

// The record with what is seen of the run now: a record may say "running" of a run that nobody conducts any more.
record::RunRecord seen(const RunState& state) {
  record::RunRecord record = *state.record;
  record.state = state.status;
  return record;
}

std::string row(const record::RunDir& run, const RunState& state) {
  const auto last = read_last_step(run);
  const std::string step = last ? std::to_string(last->step) : "-";
  const std::string loss = last ? fmt::format("{:.4f}", last->loss) : "-";
  // "3/4": with fewer nodes than it asked for.
  std::string nodes = std::to_string(state.plan.nodes);
  const int ranks = state.record ? state.record->world_size : 0;
  if (ranks > 0 && ranks < state.plan.world_size())
    nodes = fmt::format("{}/{}", ranks / state.plan.ranks_per_node, nodes);
  return fmt::format("{:<20} {:<30} {:<9} {:>4} × {:<4} {:>8} {:>9}  {}\n", base::visible(state.plan.name),
                     base::visible(state.plan.id), base::visible(state.plan.scheduler), nodes,
                     state.plan.ranks_per_node, step, loss, base::visible(state.status));
}

// Says of a run in a list that it cannot be shown, and why. One that is gone was taken away meanwhile.
void leave_out(const record::RunDir& run, const base::Error& why) {
  std::error_code ignored;
  if (std::filesystem::exists(run.root, ignored))
    warn({fmt::format("{} is left out: {}", run.root, why.to_string())});
}

// Says what could not be asked.
void say_unanswered(const RunsLook& look) {
  if (std::string why = look.unanswered(); !why.empty()) warn({std::move(why)});
}

base::Result<int> status(const std::string& run_name, const CommonOptions& common) {
  if (!run_name.empty()) {
    if (const auto sweep_folder = find_sweep(run_name, common)) return show_sweep(*sweep_folder, common);
    ASSIGN_OR_RETURN(auto run, find_run(run_name, common));
    ASSIGN_OR_RETURN(auto state, look_at(run));
    say_unanswered(state);
    if (common.json) {
      if (!state.record) return not_started(state);
      print_text("{}", to_json(seen(state)));
      return contract::kExitDone;
    }
    std::string out = head() + row(run, state);
    if (state.record) out += base::visible(state.record->verdict) + "\n";
    print_text(out);
    return contract::kExitDone;
  }
  const std::vector<record::RunDir> runs = all_runs(common);
  ASSIGN_OR_RETURN(const auto closed, count_closed_runs(common));
  if (closed > 0)
    warn(
        {fmt::format("{} in {} cannot be looked at: Permission denied; what a run leaves is its user's alone",
                     counted(closed, "folder"), absolute_path(common.runs_directory))});
  if (runs.empty() && closed == 0 && !common.json) {
    print_text("no runs in {}; start one with `shardrun run job.toml`\n",
               absolute_path(common.runs_directory));
    return contract::kExitDone;
  }
  std::string out = head();
  std::vector<record::RunRecord> records;
  RunsLook look;
  for (const record::RunDir& run : runs) {
    auto state = look.at(run);
    if (!state) {
      leave_out(run, state.error());
      continue;
    }
    out += row(run, *state);
    if (state->record) records.push_back(seen(*state));
  }
  say_unanswered(look);
  if (common.json) {
    print_text("{}", to_json(records));
  } else {
    print_text(out);
  }
  return contract::kExitDone;
}

// Whether the run ended longer ago than an alert on its end could miss.
bool is_history(const RunState& state) {
  constexpr double kRemembered = 3600.0;
  if (!is_over(state)) return false;
  const auto& attempts = state.record ? state.record->attempts : std::vector<record::Attempt>{};
  return attempts.empty() || attempts.back().ended.value_or(0.0) < base::unix_now() - kRemembered;
}

base::Result<int> metrics(const std::string& run_name, const CommonOptions& common) {
  std::vector<RunSample> samples;
  if (!run_name.empty()) {
    ASSIGN_OR_RETURN(const auto run, find_run(run_name, common));
    ASSIGN_OR_RETURN(const auto state, look_at(run));
    say_unanswered(state);
    print_text("{}", prometheus_text({sample_of(run, state)}));
    return contract::kExitDone;
  }
  RunsLook look;
  for (const record::RunDir& run : all_runs(common)) {
    const auto state = look.at(run);
    if (!state) leave_out(run, state.error());
    if (!state || is_history(*state)) continue;
    samples.push_back(sample_of(run, *state));
  }
  say_unanswered(look);
  print_text("{}", prometheus_text(samples));
  return contract::kExitDone;
}

struct StatusOptions {
  std::string run;
  bool prometheus = false;
};

}  // namespace

void add_status(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<StatusOptions>();
  CLI::App* verb = app.add_subcommand("status", "List runs, or show one");
  add_run_name(*verb, options.run, line, false);
  verb->add_flag(
      "--prometheus", options.prometheus,
      "Print what goes on, and what ended within the hour, or the run that is named, as Prometheus reads it");
  add_common(*verb, line, true);
  verb->footer("Example:\n  shardrun status tiny-llama");
  add_host(*verb, line);
  add_kubernetes(*verb, line);
  verb->callback([&] {
    line.end(!line.name_space.empty()    ? kubernetes_status(options.run, line)
             : !line.remote.host.empty() ? run_elsewhere(line)
             : options.prometheus        ? metrics(options.run, line.common)
                                         : status(options.run, line.common));
  });
}

}  // namespace shardrun::launcher
