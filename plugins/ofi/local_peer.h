// Whose process is at the other end of a TCP connection, as far as this machine's kernel knows.
//
// Thread rule: free function.
#pragma once

namespace shardrun::ofi {

enum class Caller {
  kUnsuspected,  // this user's or root's; another machine's; or the kernel does not say (it lacks NETLINK_SOCK_DIAG)
  kAnotherUser,  // a process of this machine that belongs to neither this user nor root
  kGone,         // it was on this machine, and has hung up
};
// `socket` is an accepted IPv4 connection.
Caller who_calls(int socket);

}  // namespace shardrun::ofi
