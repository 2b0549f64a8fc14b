#include <sys/mman.h>

#include <cerrno>

#include <fmt/format.h>

#include "runtime/model/llama_buffers.h"

namespace shardrun::model {

base::Result<Memory> Memory::create(int64_t bytes) {
  void* data =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return base::errno_error(base::Code::kIo, fmt::format("no {} bytes of memory", bytes), errno);
  }
  return Memory(static_cast<std::byte*>(data), bytes);
}

Memory::~Memory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace shardrun::model
