#include "runtime/contract/master_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <sstream>

#include "runtime/base/io.h"

namespace shardrun::contract {
namespace {
constexpr int kFirstPort = 10000;  // services like to use the ports below
constexpr int kLastPort = 65535;
}  // namespace

PortRange ephemeral_ports() {
  const auto text = base::read_file("/proc/sys/net/ipv4/ip_local_port_range", /*limit_bytes=*/256);
  return ports_in(text ? *text : "");
}

PortRange ports_in(const std::string& text) {
  PortRange range;
  std::istringstream numbers(text);
  const bool are_ports = numbers >> range.low >> range.high && range.low >= 1 && range.low <= range.high &&
                         range.high <= kLastPort;
  return are_ports ? range : PortRange();
}

base::Result<uint16_t> choose_port(const PortRange& ephemeral, uint64_t seed,
                                   const std::function<bool(uint16_t)>& is_free) {
  const int below = std::max(ephemeral.low - kFirstPort, 0);
  const int first_above = std::max(ephemeral.high + 1, kFirstPort);
  const int above = std::max(kLastPort + 1 - first_above, 0);
  // A machine that gives every port to the kernel leaves no better choice than any free one.
  if (below + above == 0) return choose_port({kLastPort + 1, kLastPort + 1}, seed, is_free);
  const int count = below + above;
  const uint64_t start = (seed * 0x9e3779b97f4a7c15ULL) >> 33;
  for (uint64_t i = 0; i < 1000; ++i) {
    const int index = static_cast<int>((start + i * 7919) % static_cast<uint64_t>(count));
    const int port = index < below ? kFirstPort + index : first_above + (index - below);
    if (is_free(static_cast<uint16_t>(port))) return static_cast<uint16_t>(port);
  }
  return base::Error(base::Code::kIo, "no free port found for MASTER_PORT");
}

std::string master_address(size_t nodes, const std::string& first_node) {
  return nodes == 1 ? "127.0.0.1" : first_node;
}

bool can_bind(uint16_t port) {
  base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(port);
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace shardrun::contract
