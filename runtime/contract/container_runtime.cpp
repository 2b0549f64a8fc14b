#include "runtime/contract/container_runtime.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

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

}  // namespace

const char* program_of(spec::ContainerRuntime runtime) {
  for (const Known& known : kKnown)
    if (known.runtime == runtime) return known.program;
  return "";
}

Result<spec::ContainerRuntime> find_container_runtime(const spec::JobSpec& spec,
                                                      const contract::EnvironmentLookup& environment) {
  const spec::ContainerRuntime wanted = spec.container.runtime;
  if (wanted == spec::ContainerRuntime::kPyxis) {
    return Error(
        Code::kInvalid,
        fmt::format("{}: pyxis starts what srun starts, and that is shardrun's supervisor, which an image "
                    "lacks; use `srun --shardrun=…`, or write runtime = \"apptainer\"",
                    spec.origin("container.runtime")));
  }
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

}  // namespace shardrun::contract
