#include "runtime/trainer/comm/phase_deadline.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "runtime/contract/exit_code.h"

namespace shardrun::comm {

PhaseDeadline::PhaseDeadline(std::string phase, std::chrono::milliseconds limit)
    : phase_(std::move(phase)), thread_([this, limit] { watch(limit); }) {}

PhaseDeadline::~PhaseDeadline() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  over_.notify_one();
  thread_.join();
}

void PhaseDeadline::watch(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (over_.wait_for(lock, limit, [this] { return is_over_; })) return;
  fmt::print(
      stderr,
      "shardrun: {} has not returned within {:.1f} s ([communication] timeout); is the launcher of this job "
      "stopped, or its node cut off?\n",
      phase_, static_cast<double>(limit.count()) / 1000.0);
  std::fflush(stderr);
  std::_Exit(contract::kExitInfrastructure);
}

}  // namespace shardrun::comm
