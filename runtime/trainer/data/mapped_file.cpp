#include "runtime/trainer/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/io.h"

namespace shardrun::data {

using base::Code;
using base::Error;

Result<MappedFile> MappedFile::open(const std::string& path, const std::string& key) {
  // A pipe that nobody writes into would be waited for.
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) {
    return Error(Code::kNotFound,
                 fmt::format("{}: {} does not exist on this node; name a text file that every "
                             "node can read",
                             key, path));
  }
  if (!fd) return base::errno_error(Code::kIo, fmt::format("{}: {}", key, path), errno);
  return map(fd.get(), path, key);
}

Result<MappedFile> MappedFile::map(int fd, const std::string& path, const std::string& key) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return base::errno_error(Code::kIo, fmt::format("{}: {}", key, path), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return Error(Code::kInvalid, fmt::format("{}: {} is not a plain file; name text files", key, path));
  }
  if (status.st_size == 0) {
    return Error(Code::kInvalid,
                 fmt::format("{}: {} is empty; remove it from the list or fill it", key, path));
  }
  const auto size = static_cast<size_t>(status.st_size);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (memory == MAP_FAILED)
    return base::errno_error(Code::kIo, fmt::format("{}: mapping {}", key, path), errno);
  return MappedFile(static_cast<const std::byte*>(memory), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace shardrun::data
