#include "runtime/rank/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <span>
#include <string>

#include <fmt/format.h>

#include "runtime/base/process_files.h"

namespace shardrun::rank {
namespace {

using base::Code;
using base::Result;
using base::UniqueFd;

constexpr uint64_t kLargestEnvironment = 4 << 20;  // bytes
constexpr int kMostPasses = 250;                   // over all processes, 20 ms apart

// Whether a process whose environment reads empty may have one all the same: while it executes another program, the
// kernel has dropped the old one's environment and not yet set the new one's: its code begins at 0 until the new program is
// whole, and for a moment before that the environment's first and last address are equal.
bool is_between_programs(pid_t pid) {
  constexpr uint64_t kKernelThread = 0x00200000;  // PF_KTHREAD
  const auto stat = base::read_process_stat(pid);
  if (!stat) return false;
  const bool is_a_program = !stat->has_ended() && (stat->flags & kKernelThread) == 0;
  const bool has_none =
      stat->code_begin != 0 && stat->environment == stat->environment_end && stat->environment_end != 0;
  return is_a_program && !has_none;
}

// Kills every process that has the mark; returns how many there were or may have been. One that has ended has no
// environment.
int kill_marked(const std::string& mark) {
  int found = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(::opendir("/proc"), ::closedir);
  while (const dirent* entry = processes ? ::readdir(processes.get()) : nullptr) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid <= 1 || pid == ::getpid()) continue;
    const auto read = base::read_file(fmt::format("/proc/{}/environ", pid), kLargestEnvironment);
    if (!read) continue;
    const std::string environment = '\0' + *read;
    const bool marked = environment.find('\0' + mark + '\0') != std::string::npos;
    if (!marked && !(read->empty() && is_between_programs(pid))) continue;
    ++found;
    if (marked) ::kill(pid, SIGKILL);
  }
  return found;
}

// The guard's life. Nothing of the supervisor's may stay open in it: others wait for the end of those pipes.
[[noreturn]] void stand_guard(int listens, const std::string& mark) {
  ::setsid();
  ::prctl(PR_SET_NAME, "rank-guard");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::dup2(listens, STDIN_FILENO);
  ::close_range(STDIN_FILENO + 1, ~0U, 0);
  pid_t program = 0;
  while (true) {
    pid_t said = 0;
    const ssize_t got = ::read(STDIN_FILENO, &said, sizeof said);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof said)) break;
    if (said == 0) ::_exit(0);
    program = said;
  }
  if (program > 1) ::kill(-program, SIGKILL);
  // What is killed may have started another process just before.
  const struct timespec pause { 0, 20'000'000 };
  for (int pass = 0, empty = 0; pass < kMostPasses && empty < 2; ++pass) {
    empty = kill_marked(mark) == 0 ? empty + 1 : 0;
    ::nanosleep(&pause, nullptr);
  }
  ::_exit(0);
}

}  // namespace

Result<Guard> Guard::start() {
  uint64_t number[2] = {};
  if (::getrandom(number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
    return base::errno_error(Code::kIo, "random bytes", errno);
  std::string mark = fmt::format("SHARDRUN_GUARD={:016x}{:016x}", number[0], number[1]);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::errno_error(Code::kIo, "making a pipe", errno);
  UniqueFd listens(ends[0]), says(ends[1]);
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone, 0L, nullptr, nullptr, nullptr, nullptr));
  if (pid < 0) return base::errno_error(Code::kIo, "starting the rank's guard", errno);
  if (pid == 0) {
    says.reset();
    stand_guard(listens.get(), mark);
  }
  return Guard(std::move(says), pid, std::move(mark));
}

void Guard::watch_over(pid_t program) {
  (void)base::write_all(says_.get(), std::as_bytes(std::span(&program, 1)), "the rank's guard");
}

void Guard::dismiss() {
  if (!says_) return;
  watch_over(0);
  says_.reset();
  while (::waitpid(pid_, nullptr, __WCLONE) < 0 && errno == EINTR) {
  }
}

}  // namespace shardrun::rank
