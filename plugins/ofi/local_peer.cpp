#include "plugins/ofi/local_peer.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>

namespace shardrun::ofi {
namespace {

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

// Asks for the one socket that has `own` for its own address and `other` for its peer's.
Question question_about(const sockaddr_in& own, const sockaddr_in& other) {
  Question question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.request.sdiag_family = AF_INET;
  question.request.sdiag_protocol = IPPROTO_TCP;
  question.request.idiag_states = UINT32_MAX;
  question.request.id.idiag_sport = own.sin_port;
  question.request.id.idiag_dport = other.sin_port;
  question.request.id.idiag_src[0] = own.sin_addr.s_addr;
  question.request.id.idiag_dst[0] = other.sin_addr.s_addr;
  question.request.id.idiag_cookie[0] = question.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return question;
}

// Returns what the kernel says of that socket; nullopt when it has none, or does not say.
std::optional<inet_diag_msg> ask_kernel(const sockaddr_in& own, const sockaddr_in& other) {
  const int kernel = ::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (kernel < 0) return std::nullopt;
  const timeval limit{1, 0};
  setsockopt(kernel, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const Question question = question_about(own, other);
  alignas(nlmsghdr) char answer[1024];
  ssize_t got = -1;
  if (send(kernel, &question, sizeof question, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof question))
    got = recv(kernel, answer, sizeof answer, 0);
  close(kernel);
  nlmsghdr header;
  inet_diag_msg found;
  if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof found))) return std::nullopt;
  std::memcpy(&header, answer, sizeof header);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  std::memcpy(&found, answer + NLMSG_HDRLEN, sizeof found);
  return found;
}

}  // namespace

Caller who_calls(int socket) {
  sockaddr_in ours{}, theirs{};
  socklen_t size = sizeof ours;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&ours), &size) != 0 || ours.sin_family != AF_INET)
    return Caller::kUnsuspected;
  size = sizeof theirs;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &size) != 0) return Caller::kGone;
  const auto found = ask_kernel(theirs, ours);
  if (!found) return Caller::kUnsuspected;
  if (found->idiag_inode == 0) return Caller::kGone;  // no process has it open
  return found->idiag_uid == geteuid() || found->idiag_uid == 0 ? Caller::kUnsuspected : Caller::kAnotherUser;
}

}  // namespace shardrun::ofi
