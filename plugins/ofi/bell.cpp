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

constexpr int kMostAtOnce = 16;

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
  const int on = 1;
  if (opened->fd_ < 0 || setsockopt(opened->fd_, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ||
      bind(opened->fd_, reinterpret_cast<sockaddr*>(&address), size) != 0) {
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

bool Bell::clear() const {
  bool ours = false;
  for (int i = 0; i < kMostAtOnce; ++i) {
    char ring;
    iovec place{&ring, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
    msghdr message{};
    message.msg_iov = &place;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(fd_, &message, MSG_DONTWAIT) < 0) break;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_CREDENTIALS) continue;
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(part), sizeof(sender));
      ours |= sender.uid == geteuid();
    }
  }
  return ours;
}

}  // namespace shardrun::ofi
