#include "launcher/submit/rules.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

std::string absolute(const std::string& path, const std::string& working_directory) {
  return path.front() == '/' ? path : working_directory + "/" + path;
}

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

Result<void> check_text_file(const contract::JobSpec& spec, const std::string& key, const std::string& path,
                             const std::string& working_directory) {
  const std::string full = absolute(path, working_directory);
  struct stat status {};
  if (::stat(full.c_str(), &status) != 0) {
    return Error(Code::kInvalid, fmt::format("{}: {}: {}; name a readable text file", spec.origin(key), full,
                                             std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return Error(Code::kInvalid,
                 fmt::format("{}: {} is no regular file; name a text file", spec.origin(key), full));
  }
  if (::access(full.c_str(), R_OK) != 0) {
    return Error(Code::kInvalid,
                 fmt::format("{}: {}: {}; make it readable", spec.origin(key), full, std::strerror(errno)));
  }
  if (status.st_size == 0) {
    return Error(Code::kInvalid,
                 fmt::format("{}: {} is empty; name a file with text", spec.origin(key), full));
  }
  return {};
}

// As execvp would find it.
bool on_path(const std::string& program) {
  const char* variable = std::getenv("PATH");
  std::string path = variable != nullptr ? variable : "/usr/bin:/bin";
  path += ':';
  for (size_t begin = 0, colon = 0; (colon = path.find(':', begin)) != std::string::npos; begin = colon + 1) {
    const std::string folder = path.substr(begin, colon - begin);
    if (is_executable_file((folder.empty() ? "." : folder) + "/" + program)) return true;
  }
  return false;
}

Result<void> check_command(const contract::JobSpec& spec, const std::string& working_directory) {
  const std::string& program = spec.program.command.front();
  const std::string& origin = spec.origin("program.command[0]");
  if (program.find('/') == std::string::npos) {
    if (on_path(program)) return {};
    return Error(Code::kInvalid, fmt::format("{}: no program \"{}\" on PATH; install it, or write its path",
                                             origin, program));
  }
  const std::string full = absolute(program, working_directory);
  if (is_executable_file(full)) return {};
  return Error(Code::kInvalid,
               fmt::format("{}: {} is no executable file; correct the path, or chmod +x it", origin, full));
}

}  // namespace

Result<void> check_files(const contract::JobSpec& spec, const std::string& working_directory) {
  for (const auto& [name, files] :
       {std::pair("data.files", &spec.data.files), std::pair("data.validation", &spec.data.validation)}) {
    for (size_t i = 0; i < files->size(); ++i) {
      RETURN_IF_ERROR(check_text_file(spec, fmt::format("{}[{}]", name, i), (*files)[i], working_directory));
    }
  }
  if (!spec.program.command.empty()) RETURN_IF_ERROR(check_command(spec, working_directory));
  return {};
}

Result<void> check_launch(const contract::JobSpec& spec, const contract::LaunchPlan& plan) {
  RETURN_IF_ERROR(check_files(spec, plan.working_directory));
  if (!is_executable_file(plan.rank_program)) {
    return Error(Code::kNotFound,
                 plan.rank_program + " is not there; build or install shardrun-rank beside shardrun");
  }
  if (spec.program.command.empty()) {
    const std::string plugin =
        fmt::format("{}/libshardrun_comm_{}.so", plan.plugin_directory, spec.communication.plugin);
    if (::access(plugin.c_str(), R_OK) != 0) {
      return Error(Code::kInvalid,
                   fmt::format("{}: there is no comm plugin \"{}\" ({}: {}); build it or choose another "
                               "in [communication] plugin",
                               spec.origin("communication.plugin"), spec.communication.plugin, plugin,
                               std::strerror(errno)));
    }
  }
  return {};
}

}  // namespace shardrun::launcher
