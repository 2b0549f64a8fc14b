#include "launcher/schedule/local/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/command.h"

namespace shardrun::launcher {

using base::Code;
using base::Result;

Result<Process> start_process(const std::vector<std::string>& argv,
                              const std::vector<std::string>& environment) {
  const std::vector<char*> variables = base::pointers_to(environment), arguments = base::pointers_to(argv);

  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_init(&actions);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // libpmix opens sockets that are not close-on-exec.
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  Process process;
  const int failure =
      ::posix_spawn(&process.pid, argv[0].c_str(), &actions, &attributes, arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) return base::errno_error(Code::kIo, "starting " + argv[0], failure);
  process.pidfd = base::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!process.pidfd) {
    const int error_number = errno;
    ::kill(process.pid, SIGKILL);
    ::waitpid(process.pid, nullptr, 0);
    return base::errno_error(Code::kIo, "pidfd_open", error_number);
  }
  return process;
}

}  // namespace shardrun::launcher
