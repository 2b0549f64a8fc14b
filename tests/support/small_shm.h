// A /dev/shm that is soon full, for what a test runs.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>

#include <doctest/doctest.h>

namespace shardrun::tests {

// Puts a tmpfs of so many bytes in the place of /dev/shm, for this thread and those that it starts.
inline bool shrink_shm(const std::string& size) {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", 0, ("size=" + size).c_str()) == 0;
}

// Returns whether this user may do that: tests are skipped by name where not.
inline bool may_shrink_shm() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(shrink_shm("64k") ? 0 : 1);
  int status = 1;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
}

// Calls `run` in a thread whose /dev/shm, and that of threads that it starts, has so many bytes ("1700k").
inline void with_small_shm(const std::string& size, const std::function<void()>& run) {
  std::exception_ptr ended_by;
  std::thread([&] {
    try {
      const bool is_shrunk = shrink_shm(size);
      REQUIRE(is_shrunk);
      run();
    } catch (...) {  // a REQUIRE that failed
      ended_by = std::current_exception();
    }
  }).join();
  if (ended_by) std::rethrow_exception(ended_by);
}

}  // namespace shardrun::tests
