#include "runtime/trainer/shard/arena.h"

#include <fmt/format.h>

namespace shardrun::shard {

base::Result<Arena> Arena::create(int64_t planned_bytes, kernels::Backend& backend) {
  SHARDRUN_CHECK(planned_bytes > 0);
  auto memory = backend.allocate(planned_bytes);
  if (!memory) {
    return base::Error(memory.error().code(), fmt::format("{} bytes for parameters and optimizer state: {}",
                                                          planned_bytes, memory.error().to_string()));
  }
  return Arena(std::move(memory).value());
}

std::byte* Arena::take_bytes(int64_t bytes) {
  SHARDRUN_CHECK(used_bytes_ + bytes <= planned_bytes());
  std::byte* taken = memory_.data() + used_bytes_;
  used_bytes_ += bytes;
  return taken;
}

}  // namespace shardrun::shard
