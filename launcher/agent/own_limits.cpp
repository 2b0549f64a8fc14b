#include "launcher/agent/own_limits.h"

#include <fmt/format.h>

#include "runtime/base/limits.h"

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Error;

constexpr int64_t kOwnDescriptors = 32;  // of a run without ranks there are some twenty
// Under the local scheduler a rank needs a connection, two pipes and one of PMIx; else its node needs a connection.
constexpr int64_t kDescriptorsOfRank = 4;

}  // namespace

base::Result<void> raise_own_limits(const record::LaunchPlan& plan) {
  const int64_t needed = kOwnDescriptors + (plan.scheduler == "local" ? kDescriptorsOfRank * plan.world_size()
                                                                      : int64_t{plan.nodes});
  if (const int64_t room = base::make_room_for_descriptors(needed); room < needed)
    return Error(
        Code::kRefused,
        fmt::format("the hard limit of open files is {0}, and shardrun needs {1} for this job; start "
                    "it where `ulimit -Hn` says {1} or more (/etc/security/limits.conf, LimitNOFILE)",
                    room, needed));
  return {};
}

}  // namespace shardrun::launcher
