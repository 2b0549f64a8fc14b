#include "runtime/trainer/train/progress.h"

#include <algorithm>
#include <chrono>

#include "runtime/trainer/comm/forwarding_communicator.h"

namespace shardrun::train {
namespace {

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class WatchedCommunicator : public comm::ForwardingCommunicator {
 public:
  WatchedCommunicator(comm::Communicator& inner, Progress& progress)
      : ForwardingCommunicator(inner), progress_(progress) {}

  comm::Result<void> wait(comm::Pending pending) override {
    progress_.begin_wait();
    auto done = inner_.wait(pending);
    progress_.end_wait();
    return done;
  }

 private:
  comm::Result<comm::Pending> begin(std::string_view, size_t, const Start& start) override {
    progress_.enter_collective();
    return start();
  }

  Progress& progress_;
};

}  // namespace

contract::RankPhase Progress::enter_phase(contract::RankPhase phase) {
  const uint32_t before = page_.phase.exchange(static_cast<uint32_t>(phase), std::memory_order_relaxed);
  move();
  return static_cast<contract::RankPhase>(before);
}

void Progress::enter_collective() {
  page_.entered.fetch_add(1, std::memory_order_relaxed);
  move();
}

void Progress::begin_wait() {
  wait_began_ = monotonic_seconds();
  page_.waiting.store(1, std::memory_order_relaxed);
}

void Progress::end_wait() {
  page_.waiting.store(0, std::memory_order_relaxed);
  waited_ += monotonic_seconds() - wait_began_;
  move();
}

void Progress::end_step(int64_t step, double seconds) {
  const double busy = std::max(0.0, seconds - waited_);
  waited_ = 0.0;
  page_.step_microseconds.store(static_cast<int64_t>(seconds * 1e6), std::memory_order_relaxed);
  page_.busy_microseconds.fetch_add(static_cast<int64_t>(busy * 1e6), std::memory_order_relaxed);
  page_.spent_microseconds.fetch_add(static_cast<int64_t>(seconds * 1e6), std::memory_order_relaxed);
  page_.step.store(step, std::memory_order_relaxed);
  move();
}

std::unique_ptr<comm::Communicator> watched(comm::Communicator& inner, Progress& progress) {
  return std::make_unique<WatchedCommunicator>(inner, progress);
}

}  // namespace shardrun::train
