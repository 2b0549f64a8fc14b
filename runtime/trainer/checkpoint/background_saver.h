// BackgroundSaver: one rank's side of writing checkpoints while training goes on.
//
// Between two optimizer steps nobody changes the master and moment shards, so a thread reads them while the next
// forward and backward run, a chunk at a time through a buffer of 1 MiB. What it has not read when the optimizer
// wants to change them is copied (before_update) and written from the copy: the trainer waits at most for a copy in
// memory, never for a disk; the memory for it is reserved before training.
//
// A checkpoint is complete when every rank's file is on the disk and rank 0 has then published it. The ranks agree
// on that with two numbers from each, which the trainer adds to a sum over ranks that it makes anyway:
//
//   start(...)                     all ranks, between two steps; not while a save is in flight
//   each step:  before_update()    before the optimizer changes the state
//               sums = all_reduce(votes());  if (auto done = agree(sums)) report it
//   at the end: while (in_flight()) { wait(); agree(all_reduce(votes())); }
//
// The sums are the same on all ranks, so agree() decides the same on all. Rule for failures: a save that fails on
// any rank is over when all ranks have stopped working on it; agree() then returns its error (kIo with the file on
// the rank that failed, kPeerLost on the others), training goes on, and the next save is a new attempt. The failed
// save's unfinished folder is removed by the next publish.
//
// Thread rule: one thread calls; the class owns another, which has the lowest priority, all signals blocked and, where no
// GPU is read, descriptors of its own (a save does not fail because the process has none left),
// touches the state only inside a lock shared with before_update(), and is joined by the destructor (it stops after
// the chunk at hand).
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "runtime/trainer/checkpoint/store.h"

namespace shardrun::checkpoint {

class BackgroundSaver {
 public:
  // `publishes` is true on exactly one rank of `ranks`. `staging` outlives the saver; with less of it than
  // plan::staging_elements(), before_update() waits for the disk when it would need more.
  BackgroundSaver(Store store, bool publishes, int ranks, std::span<float> staging)
      : store_(std::move(store)), publishes_(publishes), ranks_(ranks), staging_(staging) {}
  BackgroundSaver(const BackgroundSaver&) = delete;
  ~BackgroundSaver();

  // Begins to save manifest.step. `state` must not change before before_update() has returned, and must stay in
  // memory until the save is over. A save in flight is a bug (CHECK).
  void start(const Manifest& manifest, const Place& place, const plan::ShardLayout& layout,
             const ShardState& state);
  bool in_flight() const { return phase_ != Phase::kIdle; }

  // Call it before the state changes; afterwards it may. Returns at once when no save is in flight.
  void before_update();
  // Returns the bytes that before_update() copied for the save in flight or, if there is none, for the last one.
  uint64_t bytes_staged() const { return bytes_staged_; }

  // {1 if this rank's part of the phase is done, 1 if it failed}; zeros when no save is in flight.
  using Votes = std::array<double, 2>;
  Votes votes();
  // Takes the votes summed over all ranks. Returns the checkpoint's path when it is complete, the error when it
  // never will be.
  std::optional<Result<std::string>> agree(const Votes& sums);
  // Waits until this rank's part of the phase is done or failed.
  void wait();

 private:
  enum class Phase { kIdle, kWriting, kPublishing };
  void run(Phase phase);
  Result<void> write_file();
  Result<void> write_chunks();
  void finish_phase(Result<void> result);
  void join();

  Store store_;
  bool publishes_;
  int ranks_;
  std::span<float> staging_;
  Phase phase_ = Phase::kIdle;
  Manifest manifest_;
  uint64_t bytes_staged_ = 0;
  bool reads_device_ = false;
  std::thread thread_;

  std::mutex mutex_;  // guards the rest; the thread holds it while it takes a chunk, and for nothing longer
  std::condition_variable done_;
  std::optional<ShardFileWriter> writer_;
  std::optional<Result<void>> result_;  // result of this rank's part of the phase
  bool cancelled_ = false;
};

}  // namespace shardrun::checkpoint
