// Closes connections of this machine's other users before libfabric sees them. libfabric believes a caller who says that it
// is a rank of the same machine, and then closes the rank's own connection; and each caller costs it a descriptor and memory
// for as long as he likes. Those who have hung up meanwhile are closed as well: libfabric 1.17 would keep them for ever, and
// ask each of them for more at every turn. The linker puts this function in the place of accept() in libfabric.a (--wrap in
// CMakeLists.txt); where libfabric is a shared library there is no such guard.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "plugins/ofi/local_peer.h"

extern "C" {
int __real_accept(int listener, sockaddr* address, socklen_t* length);
__attribute__((visibility("hidden"))) int __wrap_accept(int listener, sockaddr* address, socklen_t* length);

int __wrap_accept(int listener, sockaddr* address, socklen_t* length) {
  const int connection = __real_accept(listener, address, length);
  if (connection < 0 || shardrun::ofi::who_calls(connection) == shardrun::ofi::Caller::kUnsuspected)
    return connection;
  close(connection);
  errno = EAGAIN;
  return -1;
}
}
