// Lets a rank compute while much of a long message is still to come. With every few dozen KiB the kernel would wake the engine's
// thread, which takes the CPU from what computes there, reads them and sleeps again. So while nobody waits, a socket from which less
// was read than is left of a message has news once kAtOnce of it are there, or the rest (SO_RCVLOWAT); that it is closed is news at
// once (docs/decisions/0144). The linker puts this function in the place of recv() in libfabric.a (--wrap in CMakeLists.txt); where
// libfabric is a shared library messages are read as they come.
#include "plugins/ofi/receive_late.h"

#include <sys/socket.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <utility>

#include "plugins/ofi/operation.h"

namespace {

constexpr size_t kAtOnce = shardrun::ofi::kMostMessage;
// Where libfabric does not know what comes, it asks for 9,000 bytes: that is no message, and may be all for long.
constexpr size_t kLeast = 16 << 10;

// By descriptor, what was last asked for. A new socket has its number from one that was closed, and may be taken for one that
// waits for much already: then its first message is read as it comes.
std::array<std::atomic<int>, 4096> asked;

// Returns whether a full window is news, too. Before Linux 5.7 one of packets that hold little could fill up below what was asked for,
// and a socket slept for ever ("tcp: fix SO_RCVLOWAT hangs with fat skbs").
bool is_safe() {
  static const bool safe = [] {
    utsname system{};
    int major = 0, minor = 0;
    return uname(&system) == 0 && std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
           std::pair(major, minor) >= std::pair(5, 7);
  }();
  return safe;
}

void ask_for(int socket, size_t left) {
  const bool is_late =
      left >= kLeast && is_safe() && shardrun::ofi::waiting_callers.load(std::memory_order_relaxed) == 0;
  const int wanted = is_late ? static_cast<int>(std::min(left, kAtOnce)) : 1;
  std::atomic<int>& before = asked[static_cast<size_t>(socket)];
  if (std::max(1, before.load(std::memory_order_relaxed)) == wanted) return;
  if (setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted)) == 0)
    before.store(wanted, std::memory_order_relaxed);
}

}  // namespace

extern "C" {
ssize_t __real_recv(int socket, void* buffer, size_t bytes, int flags);
__attribute__((visibility("hidden"))) ssize_t __wrap_recv(int socket, void* buffer, size_t bytes, int flags);

ssize_t __wrap_recv(int socket, void* buffer, size_t bytes, int flags) {
  const ssize_t got = __real_recv(socket, buffer, bytes, flags);
  if (got > 0 && static_cast<size_t>(socket) < asked.size())
    ask_for(socket, bytes - static_cast<size_t>(got));
  return got;
}
}
