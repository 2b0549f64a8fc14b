// Memory: one large allocation of zero bytes, in memory, in a file, or on a device.
//
// Pages of a file that are not needed for a while can be given back to the system, which writes them to it:
//   evict     starts writing the range and takes it out of this process's memory
//   prefetch  starts reading it again
// Both are advice about speed: reading and writing the range is right at any time. The file has no name, so nothing is
// left behind however the process ends.
//
// Thread rule: thread-compatible; evict and prefetch may be called on disjoint ranges from different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/result.h"

namespace shardrun::base {

class Memory {
 public:
  // The memory is page-aligned; a page exists once it is touched, of so many bytes and more a large one where the system has
  // them. Error: kIo.
  static constexpr int64_t kWithLargePages = int64_t{32} << 20;
  static Result<Memory> create(int64_t bytes);
  // All pages exist from the start: for memory that is reserved now and must be fast when it is used.
  static Result<Memory> create_resident(int64_t bytes);
  // `directory` exists and should lie on a local disk; a file system in memory saves nothing. Errors: kIo naming
  // it, also when it has no room: the file's blocks are reserved at once.
  static Result<Memory> create_in_file(int64_t bytes, const std::string& directory);
  // Takes over memory of another kind, e.g. a GPU's; `release` frees it.
  using Release = void (*)(std::byte*);
  static Memory adopt(std::byte* data, int64_t bytes, Release release) {
    Memory memory(data, bytes, -1);
    memory.release_ = release;
    return memory;
  }
  Memory() = default;
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool is_in_file() const { return file_ >= 0; }

  // These act on the whole pages inside [offset, offset + bytes). They do nothing to memory that is not in a file.
  void evict(int64_t offset, int64_t bytes) const;
  void prefetch(int64_t offset, int64_t bytes) const;

 private:
  Memory(std::byte* data, int64_t bytes, int file) : data_(data), bytes_(bytes), file_(file) {}
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int file_ = -1;
  Release release_ = nullptr;  // null for mapped memory
};

// Copies values that nobody reads soon: writes `to` without reading it first and without putting it into the
// caches, at nearly twice memcpy's speed where memory is the limit. The ranges do not overlap. Other threads see
// the copy when they see what the caller does next. Thread-safe.
void copy_past_caches(std::span<const float> from, float* to);

// Hands out pieces of memory, aligned to a cache line, or only counts them when there is none, so that one piece of
// code makes the plan and uses it. Thread rule: thread-compatible.
class Cursor {
 public:
  explicit Cursor(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* take(int64_t count) {
    constexpr int64_t kAlignment = 64;
    std::byte* const at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(at);
  }
  template <typename T>
  void take(T*& pointer, int64_t count) {
    pointer = take<T>(count);
  }
  // Starts the next piece on a new page, for pieces that are given back to the system one by one.
  void start_page() { bytes_ = (bytes_ + 4095) / 4096 * 4096; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

}  // namespace shardrun::base
