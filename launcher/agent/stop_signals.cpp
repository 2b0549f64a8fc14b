#include "launcher/agent/stop_signals.h"

#include <sys/signalfd.h>

#include <cerrno>

namespace shardrun::launcher {

base::Result<StopSignals> StopSignals::block() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  StopSignals signals;
  signals.fd_ = base::UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.fd_) return base::errno_error(base::Code::kIo, "signalfd", errno);
  ::pthread_sigmask(SIG_BLOCK, &set, &signals.before_);
  return signals;
}

StopSignals::StopSignals(StopSignals&& other) noexcept : fd_(std::move(other.fd_)), before_(other.before_) {}

StopSignals::~StopSignals() {
  if (fd_) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace shardrun::launcher
