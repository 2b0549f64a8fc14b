#include "runtime/base/trust.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

namespace shardrun::base {
namespace {

namespace fs = std::filesystem;

struct Account {
  std::string name;  // empty where there is none
  gid_t group = 0;
};

Account account_of(uid_t user) {
  std::array<char, 16384> space;
  struct passwd entry {};
  struct passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, space.data(), space.size(), &found) != 0 || found == nullptr)
    return {"", static_cast<gid_t>(-1)};
  return {found->pw_name, found->pw_gid};
}

// Returns "user nobody (65534)".
std::string words_of(uid_t user) {
  const std::string name = account_of(user).name;
  return name.empty() ? fmt::format("user {}", user) : fmt::format("user {} ({})", name, user);
}

// Says whether a group is that of our user alone: ours by the list of users, called as we are, and without members.
bool is_private_group(gid_t group) {
  const Account us = account_of(::geteuid());
  if (us.name.empty() || us.group != group) return false;
  std::array<char, 16384> space;
  struct group entry {};
  struct group* found = nullptr;
  if (::getgrgid_r(group, &entry, space.data(), space.size(), &found) != 0 || found == nullptr) return false;
  for (char** member = found->gr_mem; *member != nullptr; ++member) {
    if (us.name != *member) return false;
  }
  return us.name == found->gr_name;
}

// Says whether `place` is named in SHARDRUN_TRUSTED_FOLDERS.
bool is_vouched_for(const fs::path& place) {
  const char* list = std::getenv(kTrustedFolders);
  std::istringstream folders(list == nullptr ? "" : list);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code absent;
    if (folder.starts_with('/') && fs::canonical(folder, absent) == place) return true;
  }
  return false;
}

Error refusal(std::string what) {
  return Error(Code::kRefused,
               fmt::format("{}, or name a folder that you trust in {}", what, kTrustedFolders));
}

Result<void> check(const fs::path& real, bool may_be_sticky) {
  for (fs::path place = real; !is_vouched_for(place); place = place.parent_path()) {
    struct stat status {};
    if (::stat(place.c_str(), &status) != 0) return errno_error(Code::kIo, place.string(), errno);
    if (status.st_uid != 0 && status.st_uid != ::geteuid()) {
      return refusal(fmt::format("{} belongs to {}, who could change it; use a place of your own",
                                 place.string(), words_of(status.st_uid)));
    }
    const bool open_to_group = (status.st_mode & S_IWGRP) != 0 && !is_private_group(status.st_gid);
    const bool open_to_others = open_to_group || (status.st_mode & S_IWOTH) != 0;
    const bool sticky = (may_be_sticky || place != real) && (status.st_mode & S_ISVTX) != 0;
    if (open_to_others && !sticky) {
      return refusal(fmt::format("others can write into {}, which belongs to {}; chmod go-w {}",
                                 place.string(), words_of(status.st_uid), place.string()));
    }
    if (place == place.root_path()) return {};
  }
  return {};
}

}  // namespace

Result<void> refuse_if_others_write(const std::string& path) {
  std::error_code failure;
  const fs::path real = fs::canonical(path, failure);
  if (failure) return errno_error(Code::kNotFound, path, failure.value());
  return check(real, /*may_be_sticky=*/false);
}

Result<void> refuse_if_others_make(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return refuse_if_others_write(path);
  std::error_code failure;
  fs::path place = fs::absolute(path, failure);
  while (!failure && ::access(place.c_str(), F_OK) != 0 && place != place.root_path())
    place = place.parent_path();
  if (!failure) place = fs::canonical(place, failure);
  if (failure) return errno_error(Code::kIo, path, failure.value());
  return check(place, /*may_be_sticky=*/true);
}

}  // namespace shardrun::base
