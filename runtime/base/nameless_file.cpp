#include "runtime/base/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

namespace shardrun::base {

Result<UniqueFd> make_nameless_file(const std::string& folder) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file && errno == EOPNOTSUPP) {  // as on NFS and Lustre: a name for a moment
    std::string path = folder + "/.nameless.XXXXXX";
    file = UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
    if (file) ::unlink(path.c_str());
  }
  if (!file) return errno_error(Code::kIo, fmt::format("making a file in {}", folder), errno);
  return file;
}

}  // namespace shardrun::base
