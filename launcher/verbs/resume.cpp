// The verb that goes on with a run that ended before it was done.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

#include "launcher/runs/run_state.h"
#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/submit/rules.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/elsewhere.h"
#include "launcher/verbs/run.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

// Refuses a run that goes on by itself, and one that is done.
Result<void> check_resumable(const RunState& state, const std::string& name) {
  const std::string run = fmt::format("{} {}", state.plan.name, state.plan.id);
  if (!is_over(state) && !state.unanswered.empty()) {
    return Error(Code::kTimeout,
                 fmt::format("whether {} is over is known to Slurm alone, which does not answer: {}; "
                             "try again when `squeue` answers",
                             run, state.unanswered));
  }
  if (!is_over(state)) {
    return Error(Code::kRefused, fmt::format("{} is not over: {}; follow it with `shardrun logs -f {}`", run,
                                             state.status, name));
  }
  if (state.record && state.record->status == record::RunStatus::kCompleted) {
    return Error(
        Code::kRefused,
        fmt::format("{} has completed; start a new run, e.g. with more steps and [model] init", run));
  }
  return {};
}

// Submits a job that goes on in the run's directory, with the plan, the spec and the code that it has there.
Result<record::LaunchPlan> submit_again(const record::RunDir& run, const record::LaunchPlan& plan) {
  ASSIGN_OR_RETURN(auto installed, find_installation());
  ASSIGN_OR_RETURN(auto loaded, load_prepared_spec(run.job_toml(), plan.overrides));
  RETURN_IF_ERROR(check_slurm_options_here(loaded.spec, "sbatch"));
  ASSIGN_OR_RETURN(auto warnings, check_launch(loaded.spec, plan));
  warn(warnings);
  SubmitRequest request{&loaded.spec,
                        loaded.text,
                        plan,
                        run.root.substr(0, run.root.find_last_of('/')),
                        installed.shardrun_program,
                        ""};
  request.goes_on_in = run.root;
  return submit_job(std::move(request));
}

Result<int> resume(const std::string& name, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto run, find_run(name, common));
  ASSIGN_OR_RETURN(auto state, look_at(run));
  RETURN_IF_ERROR(check_resumable(state, name));
  if (state.plan.scheduler == "slurm" && !inside_allocation()) {
    ASSIGN_OR_RETURN(auto submitted, submit_again(run, state.plan));
    print_text("submitted job {}: goes on in {}\n  follow it      shardrun logs -f {}\n", submitted.id,
               run.root, run.root);
    return contract::kExitDone;
  }
  if (::chdir(state.plan.working_directory.c_str()) != 0)
    return base::errno_error(Code::kIo, state.plan.working_directory, errno);
  RunOptions options;
  options.run_directory = run.root;
  // Slurm is asked about the job by its id, which is this allocation's from now on.
  if (state.plan.scheduler == "slurm") options.id = std::getenv("SLURM_JOB_ID");
  return launcher::run(options, common);
}

}  // namespace

void add_resume(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<RunName>();
  CLI::App* verb =
      app.add_subcommand("resume", "Go on with a run that was stopped or failed, in its own run directory");
  add_run_name(*verb, options.run, line, true);
  add_host(*verb, line);
  add_common(*verb, line, false);
  verb->footer("The trainer begins at its newest checkpoint.\nExample:\n  shardrun resume tiny-llama");
  verb->callback(
      [&] { line.end(line.remote.host.empty() ? resume(options.run, line.common) : run_elsewhere(line)); });
}

}  // namespace shardrun::launcher
