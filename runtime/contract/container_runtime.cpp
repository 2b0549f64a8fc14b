#include "runtime/contract/container_runtime.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

namespace shardrun::contract {
namespace {

using base::Code;
using base::Error;

struct Known {
  spec::ContainerRuntime runtime;
  const char* program;
};
constexpr Known kKnown[] = {{spec::ContainerRuntime::kApptainer, "apptainer"},
                            {spec::ContainerRuntime::kSingularity, "singularity"},
                            {spec::ContainerRuntime::kCharliecloud, "ch-run"}};

bool is_program(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

bool on_path(const std::string& program, const std::string& path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    if (end > begin && is_program(path.substr(begin, end - begin) + "/" + program)) return true;
    begin = end + 1;
  }
  return false;
}

// Returns the image as pyxis shall read it. It takes for a file only what begins with / or ., and anything else for the name of
// an image in a registry.
std::string pyxis_image(const spec::JobSpec& spec, const record::LaunchPlan& plan) {
  const std::string& image = spec.container.image;
  const std::string here = plan.working_directory + "/" + image;
  const bool is_elsewhere = image.starts_with('/') || image.starts_with('.');
  return !is_elsewhere && (image.ends_with(".sqsh") || ::access(here.c_str(), F_OK) == 0) ? here : image;
}

}  // namespace

const char* program_of(spec::ContainerRuntime runtime) {
  for (const Known& known : kKnown)
    if (known.runtime == runtime) return known.program;
  return "";
}

Result<spec::ContainerRuntime> find_container_runtime(const spec::JobSpec& spec,
                                                      const contract::EnvironmentLookup& environment) {
  const spec::ContainerRuntime wanted = spec.container.runtime;
  if (wanted == spec::ContainerRuntime::kPyxis) return wanted;  // srun starts it
  const std::string path = environment("PATH").value_or("/usr/bin:/bin");
  std::string names;
  for (const Known& known : kKnown) {
    if (wanted != spec::ContainerRuntime::kAuto && wanted != known.runtime) continue;
    if (on_path(known.program, path)) return known.runtime;
    names += (names.empty() ? "" : ", ") + std::string(known.program);
  }
  return Error(Code::kInvalid, fmt::format("{}: there is no {} on PATH to run the image with; install it, or "
                                           "remove [container]",
                                           spec.origin("container.runtime"), names));
}

std::string installation_folder(const record::LaunchPlan& plan) {
  return std::filesystem::path(plan.rank_program).parent_path().parent_path().string();
}

std::vector<std::string> pyxis_options(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                       const std::map<std::string, std::string>& variables) {
  std::string mounts, names;
  std::vector<std::string> folders = {installation_folder(plan), plan.run_directory, plan.working_directory};
  if (const auto cache = plan.variables.find("SHARDRUN_COMPILE_CACHE"); cache != plan.variables.end())
    folders.push_back(cache->second);
  std::sort(folders.begin(), folders.end());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  for (const std::string& folder : folders)
    mounts += fmt::format("{}{}:{}", mounts.empty() ? "" : ",", folder, folder);
  for (const std::string& text : spec.container.mounts) {
    const spec::Mount mount = spec::parse_mount(text);
    mounts += fmt::format(",{}:{}{}", mount.source, mount.target, mount.read_only ? ":ro" : "");
  }
  for (const auto& [name, value] : variables) names += (names.empty() ? "" : ",") + name;
  for (const auto& [name, value] : spec.environment) names += (names.empty() ? "" : ",") + name;
  return {"--container-image=" + pyxis_image(spec, plan), "--container-mounts=" + mounts,
          "--container-workdir=" + plan.working_directory, "--container-env=" + names};
}

}  // namespace shardrun::contract
