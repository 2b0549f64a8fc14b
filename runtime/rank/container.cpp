#include "runtime/rank/container.h"

#include <fmt/format.h>

#include "runtime/contract/container_runtime.h"

namespace shardrun::rank {
namespace {

using base::Code;
using base::Error;
using base::Result;
using spec::ContainerRuntime;

bool lies_in(const std::string& path, const std::string& folder) {
  return !folder.empty() && (path == folder || folder == "/" || path.starts_with(folder + "/"));
}

// Returns the mounts of the spec, preceded by those folders that lie neither in another one nor in `visible`.
std::vector<spec::Mount> mounts_of(const spec::JobSpec& spec, std::span<const std::string> folders,
                                   std::span<const std::string> visible) {
  std::vector<spec::Mount> mounts, own;
  for (const std::string& text : spec.container.mounts) own.push_back(spec::parse_mount(text));
  const auto is_there = [&](const std::string& folder, size_t index) {
    for (const std::string& other : visible)
      if (lies_in(folder, other)) return true;
    for (const spec::Mount& other : own)
      if (other.source == other.target && !other.read_only && lies_in(folder, other.source)) return true;
    for (size_t i = 0; i < folders.size(); ++i)
      if (i != index && lies_in(folder, folders[i]) && (folder != folders[i] || i < index)) return true;
    return false;
  };
  for (size_t i = 0; i < folders.size(); ++i)
    if (!folders[i].empty() && !is_there(folders[i], i)) mounts.push_back({folders[i], folders[i], false});
  mounts.insert(mounts.end(), own.begin(), own.end());
  return mounts;
}

void add_apptainer(const spec::JobSpec& spec, const std::string& working_directory,
                   const std::vector<spec::Mount>& mounts, std::vector<std::string>& argv) {
  argv.emplace_back("exec");
  if (spec.resources.gpus_per_node > 0) argv.emplace_back("--nv");
  argv.insert(argv.end(), {"--pwd", working_directory});
  for (const spec::Mount& mount : mounts)
    argv.insert(argv.end(), {"--bind", mount.source + ":" + mount.target + (mount.read_only ? ":ro" : "")});
  argv.insert(argv.end(), spec.container.arguments.begin(), spec.container.arguments.end());
  argv.push_back(spec.container.image);
}

void add_charliecloud(const spec::JobSpec& spec, const std::string& working_directory,
                      const std::vector<spec::Mount>& mounts, std::vector<std::string>& argv) {
  argv.push_back("--cd=" + working_directory);
  for (const spec::Mount& mount : mounts) argv.push_back("--bind=" + mount.source + ":" + mount.target);
  argv.insert(argv.end(), spec.container.arguments.begin(), spec.container.arguments.end());
  argv.insert(argv.end(), {spec.container.image, "--"});
}

}  // namespace

Result<ContainedProgram> contain(const spec::JobSpec& spec, const contract::RuntimeProgram& runtime,
                                 const std::map<std::string, std::string>& variables,
                                 const std::string& working_directory, std::span<const std::string> folders) {
  const bool charliecloud = runtime.kind == ContainerRuntime::kCharliecloud;
  std::vector<std::string> visible = {"/dev", "/proc", "/sys"};
  if (charliecloud) visible.emplace_back("/tmp");
  const auto mounts = mounts_of(spec, folders, visible);
  for (const spec::Mount& mount : mounts) {
    if (charliecloud && mount.read_only)
      return Error(Code::kInvalid,
                   fmt::format("{}: charliecloud mounts {} for writing or not at all; leave out :ro",
                               spec.origin("container.mounts"), mount.source));
    if (spec::can_be_mounted(mount.source)) continue;
    return Error(Code::kInvalid,
                 fmt::format("{}: {} cannot be mounted in a container; use a path without : and ,",
                             spec.origin("container"), mount.source));
  }
  ContainedProgram program;
  program.argv.push_back(runtime.path);
  if (charliecloud) {
    add_charliecloud(spec, working_directory, mounts, program.argv);
  } else {
    add_apptainer(spec, working_directory, mounts, program.argv);
    const std::string name_of_it = runtime.kind == ContainerRuntime::kApptainer ? "APPTAINER" : "SINGULARITY";
    for (const auto& [name, value] : variables) program.environment[name_of_it + "ENV_" + name] = value;
    program.environment[name_of_it + "_NO_EVAL"] = "true";  // or a shell of its own expands the values
  }
  program.argv.insert(program.argv.end(), spec.program.command.begin(), spec.program.command.end());
  return program;
}

}  // namespace shardrun::rank
