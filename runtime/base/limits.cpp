#include "runtime/base/limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace shardrun::base {
namespace {

constexpr rlim_t kLeastStackBytes = 256 << 10;  // PMIx has more than 128 KiB on it at once

}  // namespace

int64_t make_room_for_descriptors(int64_t wanted) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int64_t>::max();
  if (limit.rlim_cur < static_cast<rlim_t>(wanted)) {
    limit.rlim_cur = std::min(static_cast<rlim_t>(wanted), limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

Result<void> refuse_small_stack() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeastStackBytes) return {};
  return Error(Code::kRefused, fmt::format("the limit of the stack is {} KiB, and shardrun needs {}; type "
                                           "`ulimit -s 8192` first",
                                           limit.rlim_cur >> 10, kLeastStackBytes >> 10));
}

}  // namespace shardrun::base
