// Threads that may not be had.
//
// Thread rule: thread-safe.
#pragma once

#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/result.h"

namespace shardrun::base {

// Has `thread` do the work where it is not one already. No signal reaches it: those of the process are for the thread that started
// it. kIo where the user may start none; the caller then does the work itself, or says so.
template <typename Work>
Result<void> start_thread(std::thread& thread, Work work) {
  if (thread.joinable()) return {};
  Result<void> started;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // a thread inherits the mask of its maker
  try {
    thread = std::thread(std::move(work));
  } catch (const std::system_error& failure) {
    started = Error(Code::kIo, std::string("starting a thread: ") + failure.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace shardrun::base
