#include <fmt/format.h>

#include "launcher/schedule/slurm/slurm_jobs.h"
#include "launcher/submit/rules.h"
#include "launcher/verbs/verbs.h"
#include "runtime/contract/exit_code.h"

namespace shardrun::launcher {
namespace {

base::Result<SubmitRequest> prepare(const SubmitOptions& options, LoadedSpec& loaded) {
  auto installed = find_installation();
  if (!installed) return std::move(installed).error();
  if (loaded.spec.cluster.scheduler == contract::SchedulerKind::kLocal) {
    return base::Error(base::Code::kInvalid,
                       fmt::format("{}: scheduler = \"local\" is not submitted; use `shardrun run`, or write "
                                   "scheduler = \"slurm\"",
                                   loaded.spec.origin("cluster.scheduler")));
  }
  PlanContext context;
  context.scheduler = "slurm";
  context.working_directory = current_directory();
  context.rank_program = installed->rank_program;
  context.plugin_directory = installed->plugin_directory;
  context.overrides = options.spec.overrides;
  auto solved = solve_launch_plan(loaded.spec, context);
  if (!solved) return std::move(solved).error();
  auto warnings = check_launch(loaded.spec, *solved);
  if (!warnings) return std::move(warnings).error();
  warn(*warnings);
  return SubmitRequest{&loaded.spec, loaded.text, std::move(solved).value(), runs_of(loaded.spec),
                       installed->shardrun_program};
}

}  // namespace

int submit(const SubmitOptions& options, const CommonOptions& common) {
  auto loaded = load_spec(options.spec.path, options.spec.overrides);
  if (!loaded) return fail(loaded.error(), common);
  auto request = prepare(options, *loaded);
  if (!request) return fail(request.error(), common);
  if (options.dry_run) {
    auto text = describe_submission(*request);
    if (!text) return fail(text.error(), common);
    fmt::print("{}", *text);
    return contract::kExitDone;
  }
  auto submitted = submit_job(std::move(request).value());
  if (!submitted) return fail(submitted.error(), common);
  if (common.json) {
    fmt::print("{}", contract::to_json(*submitted));
    return contract::kExitDone;
  }
  fmt::print(
      "submitted job {}: {} nodes × {} ranks\n  run directory  {}\n  follow it      shardrun logs -f {}\n",
      submitted->id, submitted->nodes, submitted->ranks_per_node, submitted->run_directory,
      submitted->run_directory);
  return contract::kExitDone;
}

}  // namespace shardrun::launcher
