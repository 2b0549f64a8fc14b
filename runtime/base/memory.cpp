#include "runtime/base/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "runtime/base/nameless_file.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace shardrun::base {
namespace {

constexpr int64_t kPage = 4096;

struct Pages {
  int64_t begin, bytes;
};

// Returns only pages that lie wholly inside: the bytes around them may be in use.
Pages pages_inside(int64_t offset, int64_t bytes) {
  const int64_t begin = (offset + kPage - 1) / kPage * kPage;
  return {begin, std::max<int64_t>(0, (offset + bytes) / kPage * kPage - begin)};
}

Result<std::byte*> map(int64_t bytes, int flags, int file) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (data == MAP_FAILED) return errno_error(Code::kIo, fmt::format("no {} bytes of memory", bytes), errno);
  return static_cast<std::byte*>(data);
}

}  // namespace

Result<Memory> Memory::create(int64_t bytes) {
  ASSIGN_OR_RETURN(auto data, map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1));
#ifdef MADV_HUGEPAGE
  if (bytes >= kWithLargePages) ::madvise(data, bytes, MADV_HUGEPAGE);  // advice: a refusal changes no result
#endif
  return Memory(data, bytes, -1);
}

Result<Memory> Memory::create_resident(int64_t bytes) {
  ASSIGN_OR_RETURN(auto data, map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1));
  return Memory(data, bytes, -1);
}

Result<Memory> Memory::create_in_file(int64_t bytes, const std::string& directory) {
  ASSIGN_OR_RETURN(auto made, make_nameless_file(directory));
  const int file = made.release();
  Memory memory(nullptr, 0, file);  // closes the file on every way out
  if (const int failure = ::posix_fallocate(file, 0, bytes); failure != 0) {
    return errno_error(Code::kIo, fmt::format("reserving {} bytes in {}", bytes, directory), failure);
  }
  ASSIGN_OR_RETURN(auto data, map(bytes, MAP_SHARED, file));
  memory.data_ = data;
  memory.bytes_ = bytes;
  return memory;
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      file_(std::exchange(other.file_, -1)),
      release_(std::exchange(other.release_, nullptr)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(file_, other.file_);
  std::swap(release_, other.release_);
  return *this;
}

Memory::~Memory() {
  if (data_ != nullptr && release_ != nullptr) release_(data_);
  if (data_ != nullptr && release_ == nullptr) ::munmap(data_, bytes_);
  if (file_ >= 0) ::close(file_);
}

void Memory::evict(int64_t offset, int64_t bytes) const {
  const Pages pages = pages_inside(offset, bytes);
  if (file_ < 0 || pages.bytes == 0) return;
  ::madvise(data_ + pages.begin, pages.bytes, MADV_DONTNEED);
  ::sync_file_range(file_, pages.begin, pages.bytes, SYNC_FILE_RANGE_WRITE);
}

void Memory::prefetch(int64_t offset, int64_t bytes) const {
  const Pages pages = pages_inside(offset, bytes);
  if (file_ < 0 || pages.bytes == 0) return;
  ::madvise(data_ + pages.begin, pages.bytes, MADV_WILLNEED);
}

#ifdef __SSE2__
void copy_past_caches(std::span<const float> from, float* to) {
  constexpr size_t kLine = 64 / sizeof(float), kVector = 16 / sizeof(float);
  const size_t misaligned = reinterpret_cast<uintptr_t>(to) / sizeof(float) % kLine;
  const size_t head = std::min(from.size(), (kLine - misaligned) % kLine);
  const size_t lines = (from.size() - head) / kLine * kLine;
  std::copy_n(from.begin(), head, to);
  for (size_t i = head; i < head + lines; i += kLine) {
    for (size_t j = i; j < i + kLine; j += kVector) _mm_stream_ps(to + j, _mm_loadu_ps(from.data() + j));
  }
  std::copy(from.begin() + static_cast<std::ptrdiff_t>(head + lines), from.end(), to + head + lines);
  _mm_sfence();
}
#else
void copy_past_caches(std::span<const float> from, float* to) {
  std::copy(from.begin(), from.end(), to);
}
#endif

}  // namespace shardrun::base
