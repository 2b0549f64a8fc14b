// Guard: a process that outlives its supervisor for a moment and ends what the supervisor can end no more.
//
// A supervisor that is killed takes its program along (PR_SET_PDEATHSIG), but not what the program has started. The guard
// waits for the end of a pipe that the supervisor alone holds open. When that comes without a word before, it kills every
// process of the program's group, and every one that has the guard's mark in its environment, whatever session it is in.
//
// It is a child that signals nobody when it ends, which waits pass over unless they ask for such children (__WCLONE, wait(2)): one
// wait tells the supervisor that its program has left nothing behind, without a look at /proc.
//
// Thread rule: thread-compatible; start() forks, so the process has one thread.
#pragma once

#include <sys/types.h>

#include <string>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::rank {

class Guard {
 public:
  // Starts the guard. kIo when there can be none.
  static base::Result<Guard> start();
  Guard(Guard&&) noexcept = default;
  Guard& operator=(Guard&&) = delete;
  ~Guard() { dismiss(); }

  pid_t pid() const { return pid_; }
  // Returns "NAME=value", which the program must have in its environment.
  const std::string& mark() const { return mark_; }
  // Tells the guard whose group to end. Once.
  void watch_over(pid_t program);
  // For the program's side of a fork: lets go of the pipe.
  void forget() { says_.reset(); }
  // Sends the guard away and waits for its end: there is nothing left to end.
  void dismiss();

 private:
  Guard(base::UniqueFd says, pid_t pid, std::string mark)
      : says_(std::move(says)), pid_(pid), mark_(std::move(mark)) {}
  base::UniqueFd says_;
  pid_t pid_;
  std::string mark_;
};

}  // namespace shardrun::rank
