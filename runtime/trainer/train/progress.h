// Progress: what the trainer notes for whoever watches it (runtime/contract/heartbeat.h), at the price of a few stores.
//
//   a block's forward or backward, the update, a collective begun or ended   a move
//   a collective begun                                                       one more entered
//   a wait for a collective                                                  waiting, and not busy
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
  void enter_phase(contract::RankPhase phase);
  void enter_collective();
  void begin_wait();
  void end_wait();
  // `seconds` from the step's begin to its end; the waits in between are subtracted from what it was busy.
  void end_step(int64_t step, double seconds);

 private:
  contract::ProgressPage& page_;
  double wait_began_ = 0.0, waited_ = 0.0;  // seconds
};

// `inner` with its operations noted. Both outlive it.
std::unique_ptr<comm::Communicator> watched(comm::Communicator& inner, Progress& progress);

}  // namespace shardrun::train
