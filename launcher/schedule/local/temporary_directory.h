// TemporaryDirectory: a private folder under TMPDIR, or under /tmp where that is no folder in which we can write and lock, that is
// removed with all it holds.
//
// A launcher that was killed cannot remove its own; the next one does. Each holds a lock on its folder while it
// lives, so that the folder of a live launcher is never taken for that of a dead one.
//
// Thread rule: thread-compatible.
#pragma once

#include <string>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

class TemporaryDirectory {
 public:
  // Removes what dead launchers of this user left, then makes a folder. kIo names it.
  static base::Result<TemporaryDirectory> make();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept = default;
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();

  const std::string& path() const { return path_; }

 private:
  TemporaryDirectory(std::string path, base::UniqueFd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  static base::Result<TemporaryDirectory> make_below(const std::string& base);

  std::string path_;
  base::UniqueFd lock_;
};

}  // namespace shardrun::launcher
