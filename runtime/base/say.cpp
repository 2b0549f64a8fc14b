#include "runtime/base/say.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace shardrun::base {
namespace {

constexpr size_t kAtOnce = 4096;  // a pipe that is ready takes as much without blocking
constexpr int kLookMilliseconds = 100;

sigset_t broken_pipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  ::sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

NoBrokenPipeSignal::NoBrokenPipeSignal() {
  if (is_pending()) return;
  const sigset_t set = broken_pipe();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  blocks_ = sigismember(&before, SIGPIPE) == 0;
}

NoBrokenPipeSignal::~NoBrokenPipeSignal() {
  if (!blocks_) return;
  const sigset_t set = broken_pipe();
  const struct timespec at_once {};
  while (is_pending() && ::sigtimedwait(&set, nullptr, &at_once) < 0 && errno == EINTR) {
  }
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void say(int fd, std::string_view text, std::chrono::milliseconds patience,
         const std::function<bool()>& gives_up) {
  const NoBrokenPipeSignal quiet;
  auto deadline = std::chrono::steady_clock::now() + patience;
  while (!text.empty()) {
    pollfd ready{fd, POLLOUT, 0};
    if (::poll(&ready, 1, kLookMilliseconds) < 0 && errno != EINTR) return;
    const auto now = std::chrono::steady_clock::now();
    if ((ready.revents & POLLOUT) == 0) {
      if (ready.revents != 0) return;
      if (gives_up && !gives_up()) deadline = now + patience;
      if (now >= deadline) return;
      continue;
    }
    const ssize_t written = ::write(fd, text.data(), std::min(text.size(), kAtOnce));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
    deadline = now + patience;
  }
}

}  // namespace shardrun::base
