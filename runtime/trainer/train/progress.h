// Progress: what the trainer notes for whoever watches it (runtime/contract/heartbeat.h), at the price of a few stores.
//
//   a block's forward or backward, the update, a collective begun or ended   a move
//   a collective begun                                                       one more entered
//   a wait for a collective                                                  waiting, and not busy
//   a wait for a checkpoint's disk                                           the phase, for as long as it lasts
//
// So a rank that hangs is told from the ranks that wait for it: it has entered fewer collectives, or it does not wait.
// Thread rule: the trainer's thread calls.
#pragma once

#include <memory>

#include "runtime/contract/heartbeat.h"
#include "runtime/trainer/comm/communicator.h"

namespace shardrun::train {

class Progress {
 public:
  // The page outlives this object.
  explicit Progress(contract::ProgressPage& page) : page_(page) {}

  void move() { page_.moves.fetch_add(1, std::memory_order_relaxed); }
  // Returns the phase before.
  contract::RankPhase enter_phase(contract::RankPhase phase);
  void enter_collective();
  void begin_wait();
  void end_wait();
  // `seconds` from the step's begin to its end; the waits in between are subtracted from what it was busy.
  void end_step(int64_t step, double seconds);

 private:
  contract::ProgressPage& page_;
  double wait_began_ = 0.0, waited_ = 0.0;  // seconds
};

// Says for as long as it lives that the rank waits until a checkpoint is on its disk, which may take as long as the disk does. Null:
// nobody is told.
class SavingPhase {
 public:
  explicit SavingPhase(Progress* progress) : progress_(progress) {
    if (progress_ != nullptr) before_ = progress_->enter_phase(contract::RankPhase::kSaving);
  }
  SavingPhase(const SavingPhase&) = delete;
  ~SavingPhase() {
    if (progress_ != nullptr) progress_->enter_phase(before_);
  }

 private:
  Progress* progress_;
  contract::RankPhase before_ = contract::RankPhase::kStarting;
};

// `inner` with its operations noted. Both outlive it.
std::unique_ptr<comm::Communicator> watched(comm::Communicator& inner, Progress& progress);

}  // namespace shardrun::train
