// The guard against programs that are hard to see: what it kills must be found in the middle of an exec, too.
#include "runtime/rank/guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/folder.h"

namespace {

using namespace shardrun;
using rank::Guard;

// A supervisor that starts `count` programs, each in a session of its own, and ends without a word to its guard, as one
// that is killed does. Writes the programs' process numbers into `pids`.
[[noreturn]] void supervise_and_die(const std::string& program, int count, int pids) {
  auto guard = Guard::start();
  if (!guard) ::_exit(1);
  for (int i = 0; i < count; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      guard->forget();
      ::setsid();
      std::string mark = guard->mark();
      char* arguments[] = {const_cast<char*>(program.c_str()), nullptr};
      char* environment[] = {mark.data(), nullptr};
      ::execve(program.c_str(), arguments, environment);
      ::_exit(127);
    }
    if (::write(pids, &pid, sizeof pid) != sizeof pid) ::_exit(1);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ::_exit(0);
}

bool is_there(pid_t pid) {
  const auto stat = base::read_file("/proc/" + std::to_string(pid) + "/stat", /*limit_bytes=*/4096);
  return stat && stat->find(") Z") == std::string::npos && stat->find(") X") == std::string::npos;
}

TEST_CASE("a guard is a child that waits pass over, and leaves nothing behind when it is dismissed") {
  auto guard = Guard::start();
  REQUIRE(guard);
  const pid_t pid = guard->pid();

  siginfo_t info{};
  CHECK(::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == -1);
  CHECK(errno == ECHILD);
  CHECK(is_there(pid));
  guard->dismiss();

  CHECK(::kill(pid, 0) == -1);
}

TEST_CASE("a program that is killed while it becomes another one does not escape its guard") {
  const tests::Folder folder;
  // It becomes itself again, for ever: a tenth of the time its environment reads empty.
  const std::string program = folder.file("again", "#!/bin/sh\nexec \"$0\"\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  int escaped = 0;
  for (int round = 0; round < 100; ++round) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    base::UniqueFd reads(ends[0]), writes(ends[1]);
    const pid_t supervisor = ::fork();
    if (supervisor == 0) supervise_and_die(program, /*count=*/1, writes.get());
    writes.reset();
    std::vector<pid_t> programs;
    for (pid_t pid = 0; ::read(reads.get(), &pid, sizeof pid) == sizeof pid;) programs.push_back(pid);
    int status = 0;
    REQUIRE(::waitpid(supervisor, &status, 0) == supervisor);
    REQUIRE(status == 0);
    REQUIRE(programs.size() == 1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1000);
    for (const pid_t pid : programs) {
      while (is_there(pid) && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (is_there(pid)) {
        ++escaped;
        ::kill(pid, SIGKILL);
      }
    }
  }
  CHECK(escaped == 0);
}

}  // namespace
