// PhaseDeadline: ends this process when a call into a library that has no deadline of its own does not return.
//
// PMIx_Init, PMIx_Get and PMIx_Finalize wait for a server without a limit: where that is stopped or gone, a rank would wait for
// ever and say nothing. While a PhaseDeadline lives, a thread of its own counts; when the time is over it says on stderr which
// phase of the start did not end, and ends the process with kExitInfrastructure, as a peer that does not answer does.
//
// Thread rule: made and destroyed by one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace shardrun::comm {

class PhaseDeadline {
 public:
  PhaseDeadline(std::string phase, std::chrono::milliseconds limit);
  ~PhaseDeadline();
  PhaseDeadline(const PhaseDeadline&) = delete;
  PhaseDeadline& operator=(const PhaseDeadline&) = delete;

 private:
  void watch(std::chrono::milliseconds limit);

  std::string phase_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace shardrun::comm
