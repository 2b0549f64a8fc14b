// The verb that runs one job with many values.
#include "launcher/verbs/sweep.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/agent/child_program.h"
#include "launcher/plan/grid.h"
#include "launcher/runs/run_state.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/schedule/stop_signals.h"
#include "launcher/submit/rules.h"
#include "launcher/verbs/command_line.h"
#include "launcher/view/progress.h"
#include "launcher/view/sweep_report.h"
#include "runtime/base/io.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;
using base::Code;
using base::Error;
using base::Result;

struct SweepOptions {
  SpecOptions spec;
  std::vector<std::string> grid;
  std::string list;
  int limit = 0;
  bool dry_run = false;
};

// Whether the runs become one array: where the job asks for Slurm, and not inside an allocation, which runs them itself.
bool wants_array(const spec::JobSpec& spec) {
  return spec.cluster.scheduler == spec::SchedulerKind::kSlurm && !inside_allocation();
}

std::string json_of(const std::string& folder) {
  return folder + "/sweep.json";
}

Result<std::vector<Assignments>> read_runs(const SweepOptions& options) {
  std::vector<Assignments> runs;
  if (!options.list.empty()) {
    ASSIGN_OR_RETURN(auto text, base::read_file(options.list, /*limit_bytes=*/1 << 20));
    ASSIGN_OR_RETURN(runs, parse_list(text, options.list));
  } else {
    ASSIGN_OR_RETURN(runs, parse_grid(options.grid));
  }
  RETURN_IF_ERROR(check_assignments(runs));
  return runs;
}

// Reads each run's spec, so that a value that cannot be is told before anything starts.
Result<std::vector<LoadedSpec>> load_all(const SweepOptions& options, const std::vector<Assignments>& runs) {
  std::vector<LoadedSpec> all;
  for (const Assignments& run : runs) {
    std::vector<std::string> overrides = options.spec.overrides;
    overrides.insert(overrides.end(), run.begin(), run.end());
    ASSIGN_OR_RETURN(auto loaded, load_spec_to_start(options.spec.path, overrides));
    if (loaded.spec.program.snapshot != spec::SnapshotKind::kNone && wants_array(loaded.spec)) {
      return Error(Code::kInvalid,
                   fmt::format("{}: the runs of an array have no copies of the code; remove snapshot",
                               loaded.spec.origin("program.snapshot")));
    }
    all.push_back(std::move(loaded));
  }
  return all;
}

Result<ArrayRequest> array_of(const std::vector<LoadedSpec>& specs, int limit) {
  ASSIGN_OR_RETURN(auto installed, find_installation());
  const LoadedSpec& first = specs.front();
  RETURN_IF_ERROR(check_slurm_options_here(first.spec, "sbatch"));
  ArrayRequest request;
  request.at_a_time = limit;
  for (const LoadedSpec& loaded : specs) {
    ASSIGN_OR_RETURN(auto context, plan_context(loaded.spec, installed, loaded.overrides, "slurm"));
    ASSIGN_OR_RETURN(auto solved, solve_launch_plan(loaded.spec, context));
    ASSIGN_OR_RETURN(auto warnings, check_launch(loaded.spec, solved));
    if (request.plans.empty()) warn(warnings);
    request.plans.push_back(std::move(solved));
  }
  request.job = SubmitRequest{
      &first.spec, first.text, request.plans.front(), runs_of(first.spec), installed.shardrun_program, ""};
  return request;
}

Result<void> write_report(const SweepReport& report, const std::string& folder) {
  RETURN_IF_ERROR(base::make_directories(folder));
  return base::write_file_atomically(json_of(folder), to_json(report));
}

SweepReport report_of(const LoadedSpec& loaded, const std::string& id, const std::vector<Assignments>& runs) {
  SweepReport report{loaded.spec.name, id, {}};
  for (const Assignments& run : runs) {
    report.runs.emplace_back();
    report.runs.back().assignments = run;
  }
  return report;
}

Result<int> submit_sweep(const SweepOptions& options, const std::vector<Assignments>& runs,
                         const std::vector<LoadedSpec>& specs, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto request, array_of(specs, options.limit));
  if (options.dry_run) {
    ASSIGN_OR_RETURN(auto text, describe_array(request));
    print_text("{}", text);
    return contract::kExitDone;
  }
  const std::string directory = request.job.runs_directory;
  ASSIGN_OR_RETURN(auto submitted, submit_array(std::move(request)));
  const std::string id = submitted.front().id.substr(0, submitted.front().id.find('_'));
  SweepReport report = report_of(specs.front(), id, runs);
  for (size_t i = 0; i < report.runs.size(); ++i) report.runs[i].run = submitted[i].run_directory;
  const std::string folder = directory + "/" + id;
  RETURN_IF_ERROR(write_report(report, folder));
  if (common.json) {
    print_text("{}", to_json(report));
  } else {
    print_text("submitted array {} of {} runs\n  folder         {}\n  look at it     shardrun status {}\n",
               id, runs.size(), folder, folder);
  }
  return contract::kExitDone;
}

// Returns the run that a child has begun with these words of --set, and that was not there before it; "" when it has no
// directory yet, or was refused before it had one. What a checkpoint says and a machine decides stands behind the words.
std::string run_begun_by(const std::string& latest, const std::string& before, const Assignments& words) {
  std::error_code ignored;
  const std::string now = fs::canonical(latest, ignored).string();
  if (ignored || now == before) return "";
  const auto plan = read_plan(record::RunDir{now});
  const bool begins_so = plan && plan->overrides.size() >= words.size() &&
                         std::equal(words.begin(), words.end(), plan->overrides.begin());
  return begins_so ? now : "";
}

// Runs one run of a sweep to its end. sweep.json says of it before it starts, and names its directory once it has one.
// Returns whether no other may follow: a signal stopped it.
Result<bool> run_one(const std::vector<std::string>& argv, const Assignments& words, int stop_fd,
                     const std::string& folder, SweepReport& report, size_t index) {
  RETURN_IF_ERROR(write_report(report, folder));
  SweepRun& run = report.runs[index];
  std::error_code ignored;
  const std::string latest = fs::path(folder).parent_path() / "latest";
  const std::string before = fs::canonical(latest, ignored).string();
  const auto look = [&] {
    if (!run.run.empty()) return;
    run.run = run_begun_by(latest, before, words);
    if (!run.run.empty()) (void)write_report(report, folder);  // it is written again at the end
  };
  bool stopped = false;
  ASSIGN_OR_RETURN(const int code, run_child_program(argv, stop_fd, /*quiet_stdout=*/true, &stopped, look));
  look();
  if (run.run.empty()) run.status = stopped ? "stopped" : "refused";
  const bool is_last = stopped || code == contract::kExitPreempted || code > 128;
  for (size_t later = index + 1; is_last && later < report.runs.size(); ++later)
    report.runs[later].status = "not started";
  RETURN_IF_ERROR(write_report(report, folder));
  return is_last;
}

// One run after the other, each a process of its own, until one is stopped by a signal.
Result<int> run_sweep(const SweepOptions& options, const std::vector<Assignments>& runs,
                      const std::vector<LoadedSpec>& specs, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto installed, find_installation());
  const std::string directory = runs_of(specs.front().spec);
  const std::string id = "sweep-" + new_run_id(directory, false), folder = directory + "/" + id;
  SweepReport report = report_of(specs.front(), id, runs);
  ASSIGN_OR_RETURN(auto signals, StopSignals::block());
  if (!options.dry_run && !common.json) {
    say_error(fmt::format("shardrun: sweep {} of {}; look at it: shardrun status {}\n", id,
                          counted(static_cast<int64_t>(runs.size()), "run"), base::visible(folder)));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::string> argv = {installed.shardrun_program, "run", absolute_path(options.spec.path),
                                     "--quiet"};
    Assignments words = options.spec.overrides;
    words.insert(words.end(), runs[i].begin(), runs[i].end());
    for (const std::string& word : words) argv.push_back("--set=" + word);
    if (options.dry_run) {
      print_text("{}\n", base::visible_lines(fmt::format("{}", fmt::join(argv, " "))));
      continue;
    }
    if (!common.json)
      say_error(fmt::format("shardrun: run {} of {}: {}\n", i + 1, runs.size(), fmt::join(runs[i], " ")));
    ASSIGN_OR_RETURN(auto is_last, run_one(argv, words, signals.fd(), folder, report, i));
    if (!is_last) continue;
    if (const auto shown = show_sweep(folder, common); !shown) fail(shown.error(), common);
    return contract::kExitPreempted;
  }
  return options.dry_run ? static_cast<int>(contract::kExitDone) : show_sweep(folder, common);
}

Result<int> sweep(const SweepOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto runs, read_runs(options));
  ASSIGN_OR_RETURN(auto specs, load_all(options, runs));
  return wants_array(specs.front().spec) ? submit_sweep(options, runs, specs, common)
                                         : run_sweep(options, runs, specs, common);
}

// What is known now of one run; returns its curve.
TrainingCurve look_up(SweepRun& run, RunsLook& look) {
  if (run.run.empty()) return {};
  const record::RunDir directory{run.run};
  if (auto state = look.at(directory)) {
    run.status = state->status;
    if (state->record && state->record->metrics)
      run.validation_loss = state->record->metrics->validation_loss;
  }
  TrainingCurve curve = read_curve(directory);
  if (!curve.steps.empty()) {
    run.step = curve.steps.back().step;
    run.loss = curve.steps.back().loss;
  }
  if (!run.validation_loss && !curve.validations.empty()) run.validation_loss = curve.validations.back().loss;
  return curve;
}

}  // namespace

std::optional<std::string> find_sweep(const std::string& name, const CommonOptions& common) {
  std::error_code ignored;
  if (fs::exists(json_of(name), ignored)) return absolute_path(name);
  if (name.find('/') != std::string::npos) return std::nullopt;
  for (const auto& job : fs::directory_iterator(common.runs_directory, ignored)) {
    const std::string folder = (job.path() / name).string();
    if (fs::exists(json_of(folder), ignored)) return absolute_path(folder);
  }
  return std::nullopt;
}

Result<int> show_sweep(const std::string& folder, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto text, base::read_file(json_of(folder), /*limit_bytes=*/16 << 20));
  auto report = parse_sweep_report(text);
  if (!report) return std::move(report).error().context(folder);
  std::vector<TrainingCurve> curves;
  RunsLook look;
  for (SweepRun& run : report->runs) curves.push_back(look_up(run, look));
  if (std::string why = look.unanswered(); !why.empty()) warn({std::move(why)});
  // Who may only look at a sweep of somebody else sees the table all the same. What the sweep itself has written since then
  // is newer.
  const auto now = base::read_file(json_of(folder), /*limit_bytes=*/16 << 20);
  if (now && *now == text) (void)write_report(*report, folder);
  const auto started = std::find_if(report->runs.begin(), report->runs.end(),
                                    [](const SweepRun& run) { return !run.run.empty(); });
  const auto job = started == report->runs.end() ? Error(Code::kNotFound, "no run has started")
                                                 : read_job(record::RunDir{started->run});
  const std::string svg = sweep_plot_svg(*report, curves, /*in_nats=*/job && job->program.command.empty());
  const bool drawn = !svg.empty() && base::write_file_atomically(folder + "/sweep.svg", svg).has_value();
  if (common.json) {
    print_text("{}", to_json(*report));
  } else {
    print_text("{}", base::visible_lines(sweep_table_text(*report)));
    if (drawn) print_text("  curves  {}/sweep.svg\n", folder);
  }
  const bool failed = std::any_of(report->runs.begin(), report->runs.end(), [](const SweepRun& run) {
    return run.status == "failed" || run.status == "refused";
  });
  return failed ? contract::kExitProgramFailed : contract::kExitDone;
}

void add_sweep(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<SweepOptions>();
  CLI::App* verb = app.add_subcommand(
      "sweep", "Run a job with many values: as one Slurm array, or one after another on this machine");
  verb->add_option("spec", options.spec.path, "job.toml")->required();
  CLI::Option* grid = verb->add_option("--grid", options.grid,
                                       "A key and its values, section.key=VALUE,VALUE; all are combined")
                          ->type_name("KEY=VALUES");
  CLI::Option* list =
      verb->add_option("--list", options.list, "A file with a line for each run: section.key=VALUE …");
  grid->excludes(list);
  verb->add_option("--limit", options.limit, "How many runs of the array go on at a time; 0: as many as fit")
      ->check(in_range(0, 1000));
  add_overrides(*verb, options.spec.overrides);
  verb->add_flag("--dry-run", options.dry_run, "Print what would be run; start nothing");
  add_common(*verb, line, true);
  verb->footer(
      "Example:\n  shardrun sweep jobs/tiny-llama.toml --grid optimizer.learning_rate=1e-3,3e-3,1e-2");
  verb->callback([&, grid, list] {
    if (grid->count() + list->count() == 0) {
      line.end(usage_error("sweep needs --grid section.key=VALUE,VALUE, or --list FILE"));
      return;
    }
    line.end(sweep(options, line.common));
  });
}

}  // namespace shardrun::launcher
