#include "runtime/tools/stop_requests.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace shardrun::tools {

StopRequests::StopRequests() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&wanted, signal);
  ::sigprocmask(SIG_BLOCK, &wanted, &before_);
  fd_ = base::UniqueFd(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
}

StopRequests::~StopRequests() {
  if (signal_ != 0) std::raise(signal_);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

bool StopRequests::came() {
  signalfd_siginfo info{};
  if (signal_ == 0 && ::read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    signal_ = static_cast<int>(info.ssi_signo);
  }
  return signal_ != 0;
}

}  // namespace shardrun::tools
