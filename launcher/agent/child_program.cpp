#include "launcher/agent/child_program.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "runtime/base/command.h"
#include "runtime/base/io.h"

namespace shardrun::launcher {
namespace {

// Runs in the child and makes only calls that are safe between fork and exec.
[[noreturn]] void become(char* const* argv, pid_t parent, bool quiet_stdout) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);
  if (quiet_stdout) ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execv(argv[0], argv);
  ::perror(argv[0]);
  ::_exit(127);
}

}  // namespace

base::Result<int> run_child_program(const std::vector<std::string>& argv, int stop_fd, bool quiet_stdout,
                                    bool* stopped, const std::function<void()>& meanwhile) {
  constexpr int kLookMilliseconds = 500;
  SHARDRUN_CHECK(!argv.empty());
  const std::vector<char*> pointers = base::pointers_to(argv);
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) return base::errno_error(base::Code::kIo, "fork", errno);
  if (child == 0) become(pointers.data(), parent, quiet_stdout);
  const base::UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  while (pidfd) {
    pollfd polled[2] = {{pidfd.get(), POLLIN, 0}, {stop_fd, POLLIN, 0}};
    if (::poll(polled, 2, meanwhile ? kLookMilliseconds : -1) < 0 && errno != EINTR) break;
    if (meanwhile) meanwhile();
    signalfd_siginfo info{};
    if (polled[1].revents != 0 &&
        ::read(stop_fd, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      if (stopped != nullptr) *stopped = true;
      ::kill(child, SIGTERM);
    }
    if (polled[0].revents != 0) break;
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return base::errno_error(base::Code::kIo, "waiting for " + argv[0], errno);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace shardrun::launcher
