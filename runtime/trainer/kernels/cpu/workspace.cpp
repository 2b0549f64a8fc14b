#include "runtime/trainer/kernels/cpu/thread_workspace.h"

#include "runtime/base/memory.h"

namespace shardrun::kernels {

std::byte* thread_workspace(int64_t bytes) {
  thread_local base::Memory memory;
  if (memory.bytes() < bytes) {
    memory = {};  // freed before the new one exists, so there are never both
    auto grown = base::Memory::create(bytes);
    SHARDRUN_CHECK(grown);
    memory = std::move(grown).value();
  }
  return memory.data();
}

}  // namespace shardrun::kernels
