// Whether somebody waits for messages, or the rank computes and would rather not be interrupted by a part of one.
#pragma once

#include <atomic>

namespace shardrun::ofi {

// Of this process: the callers that sleep until an operation is over.
inline std::atomic<int> waiting_callers{0};

}  // namespace shardrun::ofi
