#include "launcher/verbs/precompile.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/agent/child_program.h"
#include "launcher/agent/run_directory.h"
#include "launcher/plan/precompile.h"
#include "launcher/submit/cache.h"
#include "launcher/submit/rules.h"
#include "launcher/verbs/command_line.h"
#include "launcher/verbs/run.h"
#include "launcher/view/progress.h"
#include "runtime/base/say.h"
#include "runtime/base/visible.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

struct PrecompileOptions {
  SpecOptions spec;
  bool dry_run = false;
  bool quiet = false;
};

Result<void> check_compiles(const spec::JobSpec& spec) {
  if (compiles_by_command(spec)) return {};
  const char* what =
      spec.program.trainer.empty()
          ? "nothing is to be compiled; write [precompile] command = [\"…\"] and do not disable it"
          : "the trainer's kernels come compiled; [precompile] is for command programs";
  return Error(Code::kInvalid, fmt::format("{}: {}", spec.origin("precompile"), what));
}

Result<int> submit_alone(const CompileJob& compile, const Installation& installed, bool dry_run,
                         const CommonOptions& common) {
  SubmitRequest request = submit_request(compile, installed.shardrun_program);
  if (dry_run) {
    ASSIGN_OR_RETURN(auto text, describe_submission(request));
    print_text("{}", text);
    return contract::kExitDone;
  }
  ASSIGN_OR_RETURN(auto submitted, submit_job(std::move(request)));
  if (common.json) {
    print_text("{}", to_json(submitted));
  } else {
    print_text("submitted compile job {}: {}\n  run directory  {}\n", submitted.id,
               counted(submitted.nodes, "node"), submitted.run_directory);
  }
  return contract::kExitDone;
}

}  // namespace

Result<CompileJob> make_compile_job(const LoadedSpec& loaded, const record::LaunchPlan& job) {
  RETURN_IF_ERROR(check_compiles(loaded.spec));
  CompileJob compile;
  compile.plan = compile_plan(loaded.spec, job);
  auto spec = spec::parse_job_spec(loaded.text, "job.toml", compile.plan.overrides);
  if (!spec) return std::move(spec).error().context("the compile job");
  compile.loaded = {std::move(spec).value(), loaded.text};
  return compile;
}

SubmitRequest submit_request(const CompileJob& job, const std::string& shardrun_program) {
  return {&job.loaded.spec, job.loaded.text, job.plan, runs_of(job.loaded.spec), shardrun_program, ""};
}

Result<record::RunDir> write_compile_run(CompileJob& compile, const std::string& id) {
  compile.plan.id = id;
  compile.plan.run_directory = runs_of(compile.loaded.spec) + "/" + id;
  ASSIGN_OR_RETURN(auto directory, RunDirectory::claim(compile.plan, compile.loaded.text));
  return directory.paths();
}

Result<int> compile_first(const LoadedSpec& loaded, record::LaunchPlan& plan, const Installation& installed,
                          const StopSignals& signals, bool quiet, bool json) {
  ASSIGN_OR_RETURN(auto compile, make_compile_job(loaded, plan));
  ASSIGN_OR_RETURN(auto directory, write_compile_run(compile, plan.id));
  plan.precompile_run = directory.root;
  std::vector<std::string> argv = {installed.shardrun_program, "run", "--run-directory", directory.root};
  if (quiet) argv.push_back("--quiet");
  auto code = run_child_program(argv, signals.fd(), /*quiet_stdout=*/json);
  if (!code || *code == contract::kExitDone) return code;
  const auto record = read_record(directory);
  base::say(STDERR_FILENO,
            fmt::format("shardrun: error: {} was not started: its compile job {}; see {}\n", plan.name,
                        record ? base::visible(record->verdict) : fmt::format("ended with {}", *code),
                        directory.root));
  return code;
}

namespace {

Result<int> precompile(const PrecompileOptions& options, const CommonOptions& common) {
  ASSIGN_OR_RETURN(auto installed, find_installation());
  ASSIGN_OR_RETURN(auto loaded, load_spec_to_start(options.spec.path, options.spec.overrides));
  RETURN_IF_ERROR(check_compiles(loaded.spec));
  const bool slurm = wants_slurm(loaded.spec);
  ASSIGN_OR_RETURN(auto context,
                   plan_context(loaded.spec, installed, loaded.overrides, slurm ? "slurm" : "local"));
  ASSIGN_OR_RETURN(auto plan, solve_launch_plan(loaded.spec, context));
  ASSIGN_OR_RETURN(auto warnings, check_launch(loaded.spec, plan));
  warn(warnings);
  ASSIGN_OR_RETURN(auto compile, make_compile_job(loaded, plan));
  if (!options.dry_run) {
    RETURN_IF_ERROR(prepare_cache(loaded.spec, context.cache));
  }
  if (slurm && !inside_allocation()) return submit_alone(compile, installed, options.dry_run, common);
  if (options.dry_run) {
    print_text("program        {}\nplan.json\n{}", fmt::join(compile.loaded.spec.program.command, " "),
               to_json(compile.plan));
    return contract::kExitDone;
  }
  ASSIGN_OR_RETURN(auto directory,
                   write_compile_run(compile, new_run_id(runs_of(compile.loaded.spec), slurm)));
  RunOptions run_options;
  run_options.run_directory = directory.root;
  run_options.quiet = options.quiet;
  return run(run_options, common);
}

}  // namespace

void add_precompile(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<PrecompileOptions>();
  CLI::App* verb = app.add_subcommand("precompile", "Fill a job's cache of compiled code, without training");
  verb->add_option("spec", options.spec.path, "job.toml")->required();
  add_overrides(*verb, options.spec.overrides);
  verb->add_flag("--dry-run", options.dry_run, "Print what would be run; start nothing");
  verb->add_flag("--quiet", options.quiet, "Show only the end");
  add_common(*verb, line, true);
  verb->footer("Example:\n  shardrun precompile jobs/bert-large-trn1.toml");
  verb->callback([&] { line.end(precompile(options, line.common)); });
}

}  // namespace shardrun::launcher
