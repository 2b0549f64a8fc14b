// StopSignals: turns the signals that ask shardrun to stop into a descriptor that a poll loop can wait for.
//
// Thread rule: make it before any other thread exists, so that all threads inherit the blocked signals.
#pragma once

#include <signal.h>

#include "runtime/base/io.h"
#include "runtime/base/result.h"

namespace shardrun::launcher {

class StopSignals {
 public:
  // Blocks SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 until the object is destroyed. A SIGHUP that was
  // ignored (nohup) stays ignored. kIo when the kernel refuses a signalfd.
  static base::Result<StopSignals> block();
  StopSignals(StopSignals&& other) noexcept;
  StopSignals& operator=(StopSignals&&) = delete;
  ~StopSignals();

  // A non-blocking signalfd.
  int fd() const { return fd_.get(); }
  // Says whether a request to stop has come since it was asked last.
  bool take() const;

 private:
  StopSignals() = default;
  base::UniqueFd fd_;
  sigset_t before_{};
};

}  // namespace shardrun::launcher
