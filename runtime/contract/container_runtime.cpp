#include "runtime/contract/container_runtime.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

// Returns where the program is; "" where it is not.
std::string on_path(const std::string& program, const std::string& path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    std::string file = path.substr(begin, end - begin) + "/" + program;
    if (end > begin && is_program(file)) return file;
    begin = end + 1;
  }
  return "";
}

// Returns the image as pyxis shall read it. It takes for a file only what begins with / or ., and anything else for the name of
// an image in a registry.
std::string pyxis_image(const std::string& image, const std::string& working_directory) {
  const std::string here = working_directory + "/" + image;
  const bool is_elsewhere = image.starts_with('/') || image.starts_with('.');
  return !is_elsewhere && (image.ends_with(".sqsh") || ::access(here.c_str(), F_OK) == 0) ? here : image;
}

}  // namespace

Result<RuntimeProgram> find_container_runtime(const spec::JobSpec& spec,
                                              const contract::EnvironmentLookup& environment) {
  const spec::ContainerRuntime wanted = spec.container.runtime;
  if (wanted == spec::ContainerRuntime::kPyxis) return RuntimeProgram{wanted, ""};
  const std::string path = environment("PATH").value_or("/usr/bin:/bin");
  std::string names;
  for (const Known& known : kKnown) {
    if (wanted != spec::ContainerRuntime::kAuto && wanted != known.runtime) continue;
    if (std::string found = on_path(known.program, path); !found.empty())
      return RuntimeProgram{known.runtime, std::move(found)};
    names += (names.empty() ? "" : ", ") + std::string(known.program);
  }
  return Error(Code::kInvalid, fmt::format("{}: there is no {} on PATH to run the image with; install it, or "
                                           "remove [container]",
                                           spec.origin("container.runtime"), names));
}

std::string installation_folder(const record::LaunchPlan& plan) {
  return std::filesystem::path(plan.rank_program).parent_path().parent_path().string();
}

std::vector<std::pair<std::string, std::string>> pyxis_words(const spec::JobSpec& spec,
                                                             const std::string& working_directory,
                                                             std::vector<std::string> folders,
                                                             const std::set<std::string>& names) {
  std::sort(folders.begin(), folders.end());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  std::vector<std::string> mounts;
  for (const std::string& folder : folders) mounts.push_back(folder + ":" + folder);
  for (const std::string& text : spec.container.mounts) {
    const spec::Mount mount = spec::parse_mount(text);
    mounts.push_back(mount.source + ":" + mount.target + (mount.read_only ? ":ro" : ""));
  }
  return {{"image", pyxis_image(spec.container.image, working_directory)},
          {"mounts", fmt::format("{}", fmt::join(mounts, ","))},
          {"workdir", working_directory},
          {"env", fmt::format("{}", fmt::join(names, ","))}};
}

std::vector<std::string> pyxis_options(const spec::JobSpec& spec, const record::LaunchPlan& plan,
                                       const std::map<std::string, std::string>& variables) {
  std::vector<std::string> folders = {installation_folder(plan), plan.run_directory, plan.working_directory};
  if (const auto cache = plan.variables.find("SHARDRUN_COMPILE_CACHE"); cache != plan.variables.end())
    folders.push_back(cache->second);
  std::set<std::string> names;
  for (const auto& [name, value] : variables) names.insert(name);
  for (const auto& [name, value] : spec.environment) names.insert(name);
  std::vector<std::string> options;
  for (const auto& [end, value] : pyxis_words(spec, plan.working_directory, std::move(folders), names))
    options.push_back(fmt::format("--container-{}={}", end, value));
  return options;
}

}  // namespace shardrun::contract
