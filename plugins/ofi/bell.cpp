#include "plugins/ofi/bell.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

namespace shardrun::ofi {
namespace {

socklen_t bell_address(uint64_t cookie, sockaddr_un* address) {
  const std::string name = fmt::format("shardrun-bell-{:016x}", cookie);
  *address = {};
  address->sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address->sun_path + 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

Status Bell::open(uint64_t cookie, std::unique_ptr<Bell>* bell) {
  auto opened = std::unique_ptr<Bell>(new Bell());
  sockaddr_un address;
  const socklen_t size = bell_address(cookie, &address);
  opened->fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (opened->fd_ < 0 || bind(opened->fd_, reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return {SHARDRUN_COMM_IO, fmt::format("socket for waking ranks of this node: {}", std::strerror(errno))};
  }
  *bell = std::move(opened);
  return {};
}

Bell::~Bell() {
  if (fd_ >= 0) close(fd_);
}

void Bell::ring(uint64_t cookie) const {
  sockaddr_un address;
  const socklen_t size = bell_address(cookie, &address);
  const char one = 1;
  (void)!sendto(fd_, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
}

void Bell::clear() const {
  char rings[64];
  while (recv(fd_, rings, sizeof(rings), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace shardrun::ofi
