// The workspace of the calling thread (kernels/workspace.h). This header is internal to runtime/trainer/kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardrun::kernels {

// Returns at least `bytes`, page-aligned, valid until the thread's next call; the values are anything.
std::byte* thread_workspace(int64_t bytes);

}  // namespace shardrun::kernels
