// The verb that shows one or several runs as a page.
#include <ctime>

#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "launcher/runs/run_state.h"
#include "launcher/verbs/command_line.h"
#include "launcher/view/report_page.h"
#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output;
};

base::Result<ReportRun> read_report(const record::RunDir& run) {
  ASSIGN_OR_RETURN(auto state, look_at(run));
  if (!state.record) return not_started(state);
  say_unanswered(state);
  TimelineSources sources = timeline_sources(run, std::move(state));
  ReportRun report;
  report.status = sources.status;
  report.directory = run.root;
  report.timeline = make_timeline(sources);
  report.curve = read_curve(run);
  if (!sources.exits.empty()) report.exits = std::move(sources.exits.back());
  if (auto text = base::read_file(run.job_toml())) report.spec = std::move(*text);
  if (auto plan = read_plan(run)) report.overrides = std::move(plan->overrides);
  if (const auto job = read_job(run)) {
    report.has_batch = job->has_batch();
    report.in_nats = job->program.command.empty();
  }
  report.record = std::move(sources.record);
  return report;
}

// Reads the runs that were named. Among several, those that have not started and what is there but no run, as the folder of a
// sweep, are left out with a warning: runs/<name>/* names them all.
base::Result<std::vector<ReportRun>> read_reports(const std::vector<std::string>& names,
                                                  const CommonOptions& common) {
  std::vector<ReportRun> runs;
  std::set<std::string> seen;  // `latest` is one of the others
  std::optional<base::Error> first;
  for (const std::string& name : names) {
    auto found = find_run(name, common);
    std::error_code ignored;
    if (!found && !std::filesystem::exists(name, ignored)) return std::move(found).error();  // it is misspelt
    if (found && !seen.insert(std::filesystem::weakly_canonical(found->root)).second) continue;
    auto run = found ? read_report(*found) : found.error();
    if (run) {
      runs.push_back(std::move(*run));
      continue;
    }
    const base::Error& why = run.error();
    const bool is_none = !found && why.code() == base::Code::kNotFound;
    if (names.size() > 1)
      warn({fmt::format("{} is left out: {}", name, is_none ? "it is no run" : why.to_string())});
    if (!first) first = why;
  }
  if (runs.empty()) return *first;
  return runs;
}

base::Result<int> report(const ReportOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(const auto runs, read_reports(options.runs, common));
  const std::string path = options.output.empty() ? runs[0].directory + "/report.html" : options.output;
  const std::string made =
      fmt::format("Written by shardrun at {:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  // The job stands in it, and what a run leaves is its user's alone.
  RETURN_IF_ERROR(base::write_file_atomically(path, report_page(runs, made), record::kFileMode));
  print_text("{}\n", absolute_path(path));
  return contract::kExitDone;
}

}  // namespace

void add_report(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<ReportOptions>();
  CLI::App* verb = app.add_subcommand(
      "report",
      "Write one or several runs as a page for a browser: verdict, curves, ranks, memory, what differs");
  verb->add_option(
          "run", options.runs,
          "Runs: each a directory, an id, or a job's name for its newest; of several, what is no run or "
          "has not started is left out")
      ->required();
  verb->add_option("-o,--output", options.output,
                   "Where the page goes; otherwise report.html in the first run's directory");
  add_runs(*verb, line);
  add_common(*verb, line, false);
  verb->footer(
      "Example:\n  shardrun report tiny-llama\n  shardrun report runs/tiny-llama/* -o comparison.html");
  verb->callback([&] { line.end(report(options, line.common)); });
}

}  // namespace shardrun::launcher
