#include "runtime/shard/arena.h"

#include <sys/mman.h>

#include <cerrno>

#include <fmt/format.h>

namespace shardrun::shard {

base::Result<Arena> Arena::create(int64_t planned_bytes) {
  SHARDRUN_CHECK(planned_bytes > 0);
  void* memory = ::mmap(nullptr, static_cast<size_t>(planned_bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return base::errno_error(
        base::Code::kIo, fmt::format("allocating {} bytes for parameters and optimizer state", planned_bytes),
        errno);
  }
  return Arena(static_cast<std::byte*>(memory), planned_bytes);
}

Arena::Arena(Arena&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      planned_bytes_(other.planned_bytes_),
      used_bytes_(other.used_bytes_) {}

Arena::~Arena() {
  if (memory_ != nullptr) ::munmap(memory_, static_cast<size_t>(planned_bytes_));
}

std::byte* Arena::take_bytes(int64_t bytes) {
  SHARDRUN_CHECK(used_bytes_ + bytes <= planned_bytes_);
  std::byte* taken = memory_ + used_bytes_;
  used_bytes_ += bytes;
  return taken;
}

}  // namespace shardrun::shard
