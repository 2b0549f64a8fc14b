#include "runtime/base/trust.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace shardrun::base {

Result<void> refuse_if_others_write(const std::string& path) {
  std::error_code failure;
  const std::filesystem::path real = std::filesystem::canonical(path, failure);
  if (failure) return errno_error(Code::kNotFound, path, failure.value());
  for (std::filesystem::path place = real;; place = place.parent_path()) {
    struct stat status {};
    if (::stat(place.c_str(), &status) != 0) return errno_error(Code::kIo, place.string(), errno);
    if (status.st_uid != 0 && status.st_uid != ::geteuid()) {
      return Error(Code::kRefused,
                   fmt::format("{} belongs to user {}, who could change it; use a place of your own",
                               place.string(), status.st_uid));
    }
    const bool open_to_others = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    const bool sticky_above = place != real && (status.st_mode & S_ISVTX) != 0;
    if (open_to_others && !sticky_above) {
      return Error(Code::kRefused,
                   fmt::format("others can write into {}; chmod go-w {}", place.string(), place.string()));
    }
    if (place == place.root_path()) return {};
  }
}

}  // namespace shardrun::base
