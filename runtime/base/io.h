// Files and descriptors: owned fds, whole-file reads, atomic replacement, checksums.
//
// Thread rule: free functions are thread-safe on different paths; UniqueFd is thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace shardrun::base {

// Owns one file descriptor; closes it on destruction. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// Opens a file for reading. What is no plain file is refused, and not waited for: a pipe that somebody else has put into the place
// of a file may have nobody who writes it. A path below /dev or /proc may be anything, as <(command) is.
// kNotFound if it is absent, kIo otherwise; both name `path`.
Result<UniqueFd> open_to_read(const std::string& path);

// Returns the whole file as bytes. Errors are those of open_to_read, kRefused if it is larger than `limit_bytes`, and kIo.
Result<std::string> read_file(const std::string& path, uint64_t limit_bytes = uint64_t{1} << 30);

// Writes all of `bytes`, retrying short writes and EINTR. kIo names `what`.
Result<void> write_all(int fd, std::span<const std::byte> bytes, std::string_view what);
Result<void> write_all(int fd, std::string_view text, std::string_view what);

// Closes a file that was written: a file server that is full, or whose quota is used up, may tell only then. kIo names `what`.
Result<void> close_written(UniqueFd fd, std::string_view what);

// Fills `out` from `offset` of the file. kIo, or kCorrupt when the file ends before that; both name `path`.
Result<void> read_exactly(int fd, std::span<std::byte> out, uint64_t offset, const std::string& path);

enum class Durability {
  kPowerLoss,  // is on the disk when the call returns
  // Survives every process, but not the machine: for what a machine's crash makes worthless anyway.
  kProcess,
};

// Replaces `path` so that a reader sees the old or the new content, never a mixture, and a crash right after the
// return keeps the new one: it writes a temporary file in the same folder, fsyncs it, renames it and fsyncs the
// folder (the fsyncs only for kPowerLoss; they take milliseconds each). `mode` is the permission of the new file,
// e.g. 0600. kRefused: `path` is a device, a pipe or a folder.
Result<void> write_file_atomically(const std::string& path, std::string_view bytes, unsigned mode = 0644,
                                   Durability durability = Durability::kPowerLoss);

// Waits until the names in a folder are on the disk; "" is the working directory. kIo names the folder.
Result<void> sync_folder(const std::string& folder);

// Creates the folder and its parents; succeeds when it already exists as a folder.
Result<void> make_directories(const std::string& path, unsigned mode = 0755);

// Does the same, and gives a folder that it creates at `path` the permission 0700, whatever the umask; its parents get
// the usual one. A folder that exists keeps its permission.
Result<void> make_private_directory(const std::string& path);

// Returns the CRC-32C (Castagnoli) of `bytes`, continued from `seed` (0 to start).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed = 0);

}  // namespace shardrun::base
