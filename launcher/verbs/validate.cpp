#include <fmt/format.h>

#include "launcher/plan/batch.h"
#include "launcher/submit/rules.h"
#include "launcher/verbs/command_line.h"
#include "runtime/contract/exit_code.h"
#include "runtime/plan/mesh.h"

namespace shardrun::launcher {
namespace {

struct ValidateOptions {
  std::vector<std::string> paths;      // of job.toml files
  std::vector<std::string> overrides;  // --set
};

base::Result<Warnings> validate_one(const base::Result<LoadedSpec>& loaded) {
  if (!loaded) return loaded.error();
  const auto& resources = loaded->spec.resources;
  ASSIGN_OR_RETURN(auto mesh,
                   plan::solve_mesh(loaded->spec, int64_t{resources.nodes} * resources.ranks_per_node,
                                    resources.ranks_per_node));
  RETURN_IF_ERROR(solve_batch(loaded->spec, mesh.readers()));
  const bool slurm = loaded->spec.cluster.scheduler == spec::SchedulerKind::kSlurm;
  return check_files(loaded->spec, current_directory(), slurm ? RanksRun::kElsewhere : RanksRun::kHere);
}

int validate(const std::vector<std::string>& paths, const std::vector<std::string>& overrides,
             const CommonOptions& common) {
  int exit_code = contract::kExitDone;
  for (const std::string& path : paths) {
    const auto text = spec::read_job_text(path);  // once, for it may be a pipe
    const auto loaded =
        text ? load_spec_text(*text, path, overrides) : base::Result<LoadedSpec>(text.error());
    const auto mistakes =
        text ? spec::mistakes_in_job_spec(*text, path, overrides) : std::vector<base::Error>();
    if (mistakes.size() > 1) {
      for (const base::Error& mistake : mistakes) exit_code = fail(mistake, common);
    } else if (auto valid = validate_one(loaded); !valid) {
      exit_code = fail(valid.error(), common);
    } else {
      warn(*valid);
      const std::string filled_in = filled_in_text(*loaded);
      print_text("{}: ok{}{}\n", path, filled_in.empty() ? "" : "; ", filled_in);
    }
  }
  return exit_code;
}

}  // namespace

void add_validate(CLI::App& app, CommandLine& line) {
  auto& options = line.keep<ValidateOptions>();
  CLI::App* verb = app.add_subcommand("validate", "Check job specs; nothing is started");
  verb->add_option("spec", options.paths, "job.toml files")->required();
  add_overrides(*verb, options.overrides);
  add_common(*verb, line, false);
  verb->footer("Example:\n  shardrun validate jobs/tiny-llama.toml");
  verb->callback([&] { line.end(validate(options.paths, options.overrides, line.common)); });
}

}  // namespace shardrun::launcher
