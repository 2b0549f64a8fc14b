#include "launcher/schedule/local/temporary_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace shardrun::launcher {
namespace {

using base::Code;
using base::UniqueFd;

// A folder younger than this may be waiting for its owner to lock it.
constexpr std::time_t kSettleSeconds = 60;

UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

void remove_abandoned(const std::string& base, const std::string& prefix) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(base, ignored)) {
    const std::string path = entry.path().string();
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const UniqueFd folder = open_folder(path);
    struct stat status {};
    if (!folder || ::fstat(folder.get(), &status) != 0 || status.st_uid != ::getuid()) continue;
    if (std::time(nullptr) - status.st_mtime < kSettleSeconds) continue;
    if (::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(path, ignored);
  }
}

}  // namespace

base::Result<TemporaryDirectory> TemporaryDirectory::make() {
  const char* variable = std::getenv("TMPDIR");
  if (variable != nullptr && *variable == '/') {
    auto made = make_below(variable);
    if (made)
      return made;  // else it is a folder of another node, of a job that is over, or of a file server without locks
  }
  auto made = make_below("/tmp");
  if (!made)
    return std::move(made).error().context("no temporary folder; let TMPDIR name one in which you can write");
  return made;
}

base::Result<TemporaryDirectory> TemporaryDirectory::make_below(const std::string& base) {
  const std::string prefix = fmt::format("shardrun.{}.", ::getuid());
  remove_abandoned(base, prefix);
  std::string path = fmt::format("{}/{}XXXXXX", base, prefix);
  if (::mkdtemp(path.data()) == nullptr) {
    const int failure = errno;
    return base::errno_error(Code::kIo, "creating " + path, failure);
  }
  UniqueFd lock = open_folder(path);
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0)
    return TemporaryDirectory(std::move(path), std::move(lock));
  const int failure = errno;
  ::rmdir(path.c_str());
  return base::errno_error(Code::kIo, "locking " + path, failure);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (lock_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace shardrun::launcher
