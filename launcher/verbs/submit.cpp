#include <fmt/format.h>

#include "launcher/plan/precompile.h"
#include "launcher/runs/run_state.h"
#include "launcher/schedule/local/temporary_directory.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/submit/cache.h"
#include "launcher/submit/rules.h"
#include "launcher/submit/snapshot.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "launcher/verbs/job_line.h"
#include "launcher/verbs/logs.h"
#include "launcher/verbs/precompile.h"
#include "launcher/view/progress.h"
#include "runtime/contract/compile_cache.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

struct SubmitOptions {
  JobOptions job;
  bool dry_run = false, follow = false;
  std::string after;              // a run that must have completed before
  std::string code, code_prefix;  // a snapshot that was sent here
};

// The code that the job will have, where it asks for a copy: its tar file, and the folder where it was unpacked to be looked at.
struct CodeFolder {
  std::optional<Snapshot> snapshot;
  std::string directory;  // empty: the job works where it is submitted
};

base::Result<CodeFolder> take_code(const spec::JobSpec& spec, const SubmitOptions& options,
                                   const std::string& folder) {
  if (spec.program.snapshot == spec::SnapshotKind::kNone) return CodeFolder{};
  const std::string& cache = spec.precompile.cache;
  if (!cache.empty() && cache.front() != '/') {
    return base::Error(
        base::Code::kInvalid,
        fmt::format("{}: a snapshot is a new folder for each run, and a cache outlives runs; write an "
                    "absolute path",
                    spec.origin("precompile.cache")));
  }
  auto taken = options.code.empty() ? take_snapshot(spec, current_directory(), folder)
                                    : received_snapshot(absolute_path(options.code), options.code_prefix);
  RETURN_IF_ERROR(taken);
  warn(taken->warnings);
  CodeFolder code;
  ASSIGN_OR_RETURN(code.directory, unpack_snapshot(*taken, folder));
  code.snapshot = std::move(taken).value();
  return code;
}

base::Result<SubmitRequest> prepare(LoadedSpec& loaded, const CodeFolder& code, bool dry_run) {
  ASSIGN_OR_RETURN(auto installed, find_installation());
  const auto scheduler = loaded.spec.cluster.scheduler;
  if (scheduler == spec::SchedulerKind::kLocal || scheduler == spec::SchedulerKind::kMpirun) {
    return base::Error(base::Code::kInvalid,
                       fmt::format("{}: scheduler = \"{}\" is not submitted; use `shardrun run`, or write "
                                   "scheduler = \"slurm\"",
                                   loaded.spec.origin("cluster.scheduler"), scheduler_of(loaded.spec)));
  }
  if (auto known = check_slurm_options_here(loaded.spec, "sbatch"); !known) {
    if (!dry_run || known.error().code() == base::Code::kInvalid) return std::move(known).error();
    warn({known.error().to_string()});
  }
  ASSIGN_OR_RETURN(auto context,
                   plan_context(loaded.spec, installed, loaded.overrides, "slurm", code.directory));
  ASSIGN_OR_RETURN(auto solved, solve_launch_plan(loaded.spec, context));
  ASSIGN_OR_RETURN(auto warnings, check_launch(loaded.spec, solved, dry_run));
  warn(warnings);
  if (code.directory.empty())
    warn(warn_of_private_folders(loaded.spec, solved.working_directory, runs_of(loaded.spec)));
  return SubmitRequest{
      &loaded.spec, loaded.text,  std::move(solved), runs_of(loaded.spec), installed.shardrun_program,
      "",           code.snapshot};
}

// Returns the Slurm job that this one waits for; "" when the run has completed already. kRefused when it never will.
base::Result<std::string> job_before(const std::string& name, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto run, find_run(name, common));
  ASSIGN_OR_RETURN(auto state, look_at(run));
  say_unanswered(state);
  const std::string who = fmt::format("--after {}: run {}", name, state.plan.id);
  if (is_over(state)) {
    if (state.record && state.record->status == record::RunStatus::kCompleted) return std::string();
    return base::Error(base::Code::kRefused,
                       fmt::format("{} did not complete: {}; resume it first, or submit without --after", who,
                                   end_line(state)));
  }
  if (state.plan.scheduler != "slurm") {
    return base::Error(
        base::Code::kRefused,
        fmt::format("{} is no Slurm job, so Slurm cannot wait for it; submit when it is over", who));
  }
  return state.plan.id.substr(0, state.plan.id.find('-'));
}

// What --dry-run prints: what the machine decided, the compile job's script, when there is one, and the job's.
base::Result<std::string> describe(const SubmitRequest& request, const LoadedSpec& loaded) {
  std::string text = filled_in_text(loaded);
  if (!text.empty()) text = "# " + text + "\n";
  SubmitRequest job = request;
  if (compiles_by_command(loaded.spec)) {
    ASSIGN_OR_RETURN(auto compile, make_compile_job(loaded, request.plan));
    ASSIGN_OR_RETURN(auto first, describe_submission(submit_request(compile, request.shardrun_program)));
    text += std::move(first) + "\n";
    job.after = "<compile job id>";
  }
  ASSIGN_OR_RETURN(auto own, describe_submission(job));
  return text + own;
}

// The job, behind its compile job when it has one.
base::Result<record::LaunchPlan> submit_all(SubmitRequest request, const LoadedSpec& loaded) {
  if (!compiles_by_command(loaded.spec)) return submit_job(std::move(request));
  ASSIGN_OR_RETURN(auto cache, contract::compile_cache_folder(loaded.spec, request.plan.working_directory));
  RETURN_IF_ERROR(prepare_cache(loaded.spec, cache));
  ASSIGN_OR_RETURN(auto compile, make_compile_job(loaded, request.plan));
  SubmitRequest first = submit_request(compile, request.shardrun_program);
  first.code = request.code;
  first.after = request.after;
  ASSIGN_OR_RETURN(auto chain, submit_chain(std::move(first), std::move(request)));
  return std::move(chain.second);
}

base::Result<int> submit(const SubmitOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto loaded, load_job(options.job));
  ASSIGN_OR_RETURN(auto folder, TemporaryDirectory::make());
  ASSIGN_OR_RETURN(auto code, take_code(loaded.spec, options, folder.path()));
  ASSIGN_OR_RETURN(auto request, prepare(loaded, code, options.dry_run));
  if (!options.after.empty()) {
    ASSIGN_OR_RETURN(request.after, job_before(options.after, common));
  }
  if (options.dry_run) {
    ASSIGN_OR_RETURN(auto text, describe(request, loaded));
    print_text("{}", text);
    return contract::kExitDone;
  }
  ASSIGN_OR_RETURN(auto submitted, submit_all(std::move(request), loaded));
  if (common.json) {
    print_text("{}", to_json(submitted));
    return contract::kExitDone;
  }
  print_text("submitted job {}: {} × {}\n  run directory  {}\n  follow it      shardrun logs -f {}\n",
             submitted.id, counted(submitted.nodes, "node"), counted(submitted.ranks_per_node, "rank"),
             submitted.run_directory, submitted.run_directory);
  if (!submitted.precompile_run.empty())
    print_text("  starts after   {} has compiled\n", submitted.precompile_run);
  if (!options.follow) return contract::kExitDone;
  std::fflush(stdout);
  return follow_run({submitted.run_directory}, {});
}

}  // namespace

void add_submit(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<SubmitOptions>();
  CLI::App* verb = app.add_subcommand("submit", "Submit a job to Slurm with sbatch");
  add_job(*verb, options.job);
  verb->add_flag("--dry-run", options.dry_run, "Print the script and the command; submit nothing");
  verb->add_flag("-f,--follow", options.follow,
                 "Show its logs until it ends, then say how; the exit code is the run's");
  verb->add_option("--after", options.after,
                   "Start when this run has completed; cancelled when it ends otherwise");
  verb->add_option("--runs", line.common.runs_directory, "Where that run is looked for")
      ->capture_default_str();
  verb->add_option("--code", options.code, "A snapshot that was sent here")->group("");
  verb->add_option("--code-prefix", options.code_prefix, "The folder in it")->group("");
  add_host(*verb, line);
  add_common(*verb, line, true);
  verb->footer(
      "Example:\n  shardrun submit jobs/four-ranks.toml -N 4 -n 1\n"
      "  shardrun submit -N 4 -n 2 -t 01:00:00 --follow -- python3 train.py");
  verb->callback([&] {
    options.job.command = line.behind_dashes;
    if (line.remote.host.empty()) {
      line.end(submit(options, line.common));
    } else if (options.follow) {
      line.end(
          usage_error("--follow works where the job is submitted; with --host, submit it and follow it "
                      "with `shardrun logs -f NAME --host HOST`"));
    } else {
      line.end(submit_elsewhere({options.job, options.dry_run, options.after}, line));
    }
  });
}

}  // namespace shardrun::launcher
