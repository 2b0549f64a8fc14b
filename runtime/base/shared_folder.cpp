#include "runtime/base/shared_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace shardrun::base {

void look_afresh(const std::string& folder) {
  const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

Result<void> replace_from(const std::string& stage, const std::string& path, std::string_view bytes,
                          unsigned mode, Durability durability) {
  const std::filesystem::path place(path);
  const std::string grown = stage + "/" + place.filename().string();
  auto done = write_file_atomically(grown, bytes, mode, durability);
  if (done && ::rename(grown.c_str(), path.c_str()) != 0) done = errno_error(Code::kIo, path, errno);
  if (!done && ::access(stage.c_str(), F_OK) != 0 && errno == ENOENT)
    return Error(Code::kNotFound, stage + ": was taken away");
  if (done && durability == Durability::kPowerLoss) (void)sync_folder(place.parent_path().string());
  return done;
}

}  // namespace shardrun::base
