#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

#include "launcher/verbs/verbs.h"

namespace shardrun::launcher {
namespace {

namespace fs = std::filesystem;

// The folder that a run keeps its checkpoints in.
base::Result<std::string> checkpoints_of(const record::RunDir& run) {
  const auto plan = read_plan(run);
  if (!plan) return plan.error();
  const auto spec = spec::load_job_spec(run.job_toml(), plan->overrides);
  if (!spec) return spec.error();
  const std::string& directory = spec->checkpoint.directory;
  if (directory.empty()) return run.checkpoints();
  return (fs::path(plan->working_directory) / directory).string();
}

// A checkpoint, a folder of checkpoints, or a run.
base::Result<std::string> find_checkpoints(const std::string& name, const CommonOptions& common) {
  std::error_code ignored;
  if (fs::exists(fs::path(name) / "manifest.json", ignored)) return name;
  if (fs::is_regular_file(fs::path(name) / "latest", ignored))
    return name;  // of a job's name it is a link to a run
  auto run = find_run(name, common);
  if (run) return checkpoints_of(*run);
  if (fs::is_directory(name, ignored)) return name;
  return std::move(run).error();
}

}  // namespace

int export_weights(const ExportOptions& options, const CommonOptions& common) {
  const auto installation = find_installation();
  if (!installation) return fail(installation.error(), common);
  const auto checkpoint = find_checkpoints(options.checkpoint, common);
  if (!checkpoint) return fail(checkpoint.error(), common);
  std::vector<std::string> arguments{
      installation->rank_program,    "export",
      "--checkpoint=" + *checkpoint, "--output=" + options.output,
      "--dtype=" + options.dtype,    fmt::format("--max-shard-bytes={}", options.max_shard_bytes)};
  if (common.json) arguments.emplace_back("--json");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  return fail(base::errno_error(base::Code::kIo, "starting " + installation->rank_program, errno), common);
}

}  // namespace shardrun::launcher
