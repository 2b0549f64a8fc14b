#include "launcher/schedule/stop_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

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

bool StopSignals::take() const {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info);
}

StopSignals::~StopSignals() {
  if (fd_) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace shardrun::launcher
