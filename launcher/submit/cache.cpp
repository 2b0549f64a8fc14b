#include "launcher/submit/cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;
using base::Result;

}  // namespace

Result<std::string> cache_folder(const contract::JobSpec& spec, const std::string& working_directory) {
  const std::string& given = spec.precompile.cache;
  if (!given.empty()) return given.front() == '/' ? given : working_directory + "/" + given;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') {
    return Error(Code::kInvalid,
                 fmt::format("{}: HOME names no folder for compiled code; write [precompile] cache",
                             spec.origin("precompile")));
  }
  return std::string(home) + "/.cache/shardrun/compile";
}

Result<void> prepare_cache(const contract::JobSpec& spec, const std::string& folder) {
  const std::string origin = spec.origin("precompile.cache");
  const size_t slash = folder.find_last_of('/');
  if (slash != std::string::npos && slash > 0)
    RETURN_IF_ERROR(base::make_directories(folder.substr(0, slash)));
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return base::errno_error(Code::kIo, fmt::format("{}: making {}", origin, folder), errno);
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0)
    return base::errno_error(Code::kIo, fmt::format("{}: {}", origin, folder), errno);
  if (!S_ISDIR(status.st_mode)) {
    return Error(Code::kRefused,
                 fmt::format("{}: {} is no folder; name one for compiled code", origin, folder));
  }
  if (status.st_uid != ::geteuid()) {
    return Error(
        Code::kRefused,
        fmt::format("{}: {} belongs to user {}, who could put code into it; name a folder of your own",
                    origin, folder, status.st_uid));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error(
        Code::kRefused,
        fmt::format("{}: others can write into {} (mode {:04o}) and so put code into your jobs; chmod 700 it",
                    origin, folder, status.st_mode & 07777));
  }
  return {};
}

}  // namespace shardrun::launcher
