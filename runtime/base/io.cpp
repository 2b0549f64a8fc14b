#include "runtime/base/io.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

namespace shardrun::base {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<UniqueFd> open_to_read(const std::string& path) {
  const bool of_system = path.starts_with("/dev/") || path.starts_with("/proc/");
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (of_system ? 0 : O_NONBLOCK)));
  // A plain file on which a file server has lent somebody a lease is opened when that is given back.
  if (!fd && !of_system && errno == EWOULDBLOCK) fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return errno_error(errno == ENOENT ? Code::kNotFound : Code::kIo, path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno_error(Code::kIo, path, errno);
  if (S_ISDIR(status.st_mode)) return Error(Code::kIo, fmt::format("{}: is a folder, not a file", path));
  if (!of_system && !S_ISREG(status.st_mode))
    return Error(Code::kIo, fmt::format("{}: is a pipe or a device, not a file", path));
  return fd;
}

Result<std::string> read_file(const std::string& path, uint64_t limit_bytes) {
  ASSIGN_OR_RETURN(const UniqueFd fd, open_to_read(path));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno_error(Code::kIo, path, errno);
  // Those of /proc say that they are empty.
  constexpr uint64_t kUnsaid = 4096;
  const auto said = static_cast<uint64_t>(status.st_size);
  std::string text(said > 0 ? std::min(said, limit_bytes) + 1 : kUnsaid, '\0');
  for (size_t filled = 0;;) {
    const ssize_t got = ::read(fd.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(Code::kIo, fmt::format("reading {}", path), errno);
    filled += static_cast<size_t>(got);
    if (filled > limit_bytes)
      return Error(Code::kRefused, fmt::format("{}: larger than {} bytes", path, limit_bytes));
    if (got == 0) {
      text.resize(filled);
      return text;
    }
    if (filled == text.size()) text.resize(2 * filled);
  }
}

Result<void> read_exactly(int fd, std::span<std::byte> out, uint64_t offset, const std::string& path) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(Code::kIo, fmt::format("reading {}", path), errno);
    if (got == 0) return Error(Code::kCorrupt, fmt::format("{}: is cut off at byte {}", path, offset));
    out = out.subspan(got);
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

Result<void> write_all(int fd, std::span<const std::byte> bytes, std::string_view what) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno_error(Code::kIo, fmt::format("writing {}", what), errno);
    bytes = bytes.subspan(written);
  }
  return {};
}

Result<void> write_all(int fd, std::string_view text, std::string_view what) {
  return write_all(fd, std::as_bytes(std::span(text.data(), text.size())), what);
}

Result<void> close_written(UniqueFd fd, std::string_view what) {
  // Interrupted or not, the descriptor is gone.
  if (::close(fd.release()) != 0 && errno != EINTR)
    return errno_error(Code::kIo, fmt::format("writing {}", what), errno);
  return {};
}

Result<void> write_file_atomically(const std::string& path, std::string_view bytes, unsigned mode,
                                   Durability durability) {
  const bool flush = durability == Durability::kPowerLoss;
  struct stat there {};
  if (::stat(path.c_str(), &there) == 0 &&
      !S_ISREG(there.st_mode)) {  // the rename would take the place of /dev/null itself
    return Error(Code::kRefused,
                 fmt::format("{}: is there already and is no regular file; name another", path));
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::string temporary = path + ".tmp.XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return errno_error(Code::kIo, fmt::format("creating a file beside {}", path), errno);
  auto fail = [&](Error error) {
    ::unlink(temporary.c_str());
    return error;
  };
  if (auto written = write_all(fd.get(), bytes, path); !written) return fail(std::move(written).error());
  if (::fchmod(fd.get(), mode) != 0) return fail(errno_error(Code::kIo, temporary, errno));
  if (flush && ::fsync(fd.get()) != 0) return fail(errno_error(Code::kIo, temporary, errno));
  if (auto closed = close_written(std::move(fd), path); !closed) return fail(std::move(closed).error());
  if (::rename(temporary.c_str(), path.c_str()) != 0) return fail(errno_error(Code::kIo, path, errno));
  if (flush) (void)sync_folder(folder);
  return {};
}

Result<void> sync_folder(const std::string& folder) {
  const std::string name = folder.empty() ? "." : folder;
  const UniqueFd fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network file systems refuse fsync on folders with EINVAL; they commit names with the file.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) return errno_error(Code::kIo, name, errno);
  return {};
}

Result<void> make_directories(const std::string& path, unsigned mode) {
  std::filesystem::path so_far;
  for (const auto& part : std::filesystem::path(path)) {
    so_far /= part;
    if (so_far.empty() || so_far == "/") continue;
    if (::mkdir(so_far.c_str(), mode) != 0 && errno != EEXIST) {
      return errno_error(Code::kIo, fmt::format("creating folder {}", so_far.string()), errno);
    }
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno_error(Code::kIo, path, errno);
  if (!S_ISDIR(status.st_mode)) return Error(Code::kIo, fmt::format("{}: exists and is not a folder", path));
  return {};
}

Result<void> make_private_directory(const std::string& path) {
  if (const std::string parent = std::filesystem::path(path).parent_path().string(); !parent.empty())
    RETURN_IF_ERROR(make_directories(parent));
  if (::mkdir(path.c_str(), 0700) != 0) return make_directories(path);
  if (::chmod(path.c_str(), 0700) != 0) return errno_error(Code::kIo, path, errno);
  return {};
}

namespace {
constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

uint32_t crc_by_table(std::span<const std::byte> bytes, uint32_t value) {
  for (std::byte byte : bytes) value = (value >> 8) ^ kCrcTable[(value ^ static_cast<uint32_t>(byte)) & 0xff];
  return value;
}

#ifdef __x86_64__
// The SSE 4.2 instruction computes this very polynomial, eight bytes at a time.
__attribute__((target("sse4.2"))) uint32_t crc_by_instruction(std::span<const std::byte> bytes,
                                                              uint32_t value) {
  uint64_t wide = value;
  for (; bytes.size() >= sizeof(uint64_t); bytes = bytes.subspan(sizeof(uint64_t))) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    wide = __builtin_ia32_crc32di(wide, word);
  }
  return crc_by_table(bytes, static_cast<uint32_t>(wide));
}

// Asked when it is needed: __builtin_cpu_supports() asks for everything before main(), and in a virtual machine each question takes
// the hypervisor microseconds, for every rank.
bool has_sse42() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0;
}
#endif
}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed) {
#ifdef __x86_64__
  static const bool has_instruction = has_sse42();
  if (has_instruction) return ~crc_by_instruction(bytes, ~seed);
#endif
  return ~crc_by_table(bytes, ~seed);
}

}  // namespace shardrun::base
