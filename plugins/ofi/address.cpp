#include "plugins/ofi/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>

#include "plugins/common/bytes.h"

namespace shardrun::ofi {
namespace {

using common::put;
using common::put_bytes;
using common::Reader;

constexpr uint32_t kMagic = 0x346f7273;  // "sro4"

bool is_local_bridge(const std::string& name) {
  for (const char* prefix : {"docker", "virbr", "br-", "cni", "veth"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

}  // namespace

std::string default_route_interface(const std::string& routes) {
  constexpr const char* kAll = "00000000";
  std::istringstream lines(routes);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string name, destination, skipped, mask;
    fields >> name >> destination;
    for (int field = 3; field <= 7; ++field) fields >> skipped;
    if (fields >> mask && destination == kAll && mask == kAll) return name;
  }
  return {};
}

std::vector<std::byte> pack(const RankAddress& address) {
  std::vector<std::byte> out;
  put(out, kMagic);
  put(out, address.cookie);
  put(out, address.secret);
  put(out, address.ipv4);
  put(out, address.liveness_port);
  put(out, static_cast<uint16_t>(address.endpoints.size()));
  for (const EndpointAddress& endpoint : address.endpoints) {
    put_bytes(out, endpoint.provider.data(), endpoint.provider.size());
    put_bytes(out, endpoint.bytes.data(), endpoint.bytes.size());
  }
  return out;
}

Status unpack(std::span<const std::byte> bytes, RankAddress* address) {
  Reader reader{bytes};
  if (reader.get<uint32_t>() != kMagic) {
    return {SHARDRUN_COMM_INVALID, "an address is not of this plugin: do all ranks load the same one?"};
  }
  address->cookie = reader.get<uint64_t>();
  address->secret = reader.get<common::Key>();
  address->ipv4 = reader.get<uint32_t>();
  address->liveness_port = reader.get<uint16_t>();
  const auto count = reader.get<uint16_t>();
  for (uint16_t i = 0; i < count && reader.ok; ++i) {
    const auto name = reader.take(reader.get<uint16_t>());
    const auto value = reader.take(reader.get<uint16_t>());
    address->endpoints.push_back({std::string(reinterpret_cast<const char*>(name.data()), name.size()),
                                  std::vector<std::byte>(value.begin(), value.end())});
  }
  if (!reader.ok || !reader.left.empty())
    return {SHARDRUN_COMM_INVALID, "an address is cut short or too long"};
  return {};
}

Status choose_ipv4(const std::string& interface_name, bool one_node, uint32_t* ipv4) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {SHARDRUN_COMM_IO, fmt::format("getifaddrs: {}", std::strerror(errno))};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::ostringstream routes;
  routes << std::ifstream("/proc/net/route").rdbuf();
  const std::string routed = default_route_interface(routes.str());
  int best = 0;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || !(entry->ifa_flags & IFF_UP)) {
      continue;
    }
    const std::string name = entry->ifa_name;
    int value = 3;
    if (!interface_name.empty()) {
      value = name == interface_name ? 9 : 0;
    } else if (entry->ifa_flags & IFF_LOOPBACK) {
      value = one_node ? 9 : 1;
    } else if (is_local_bridge(name)) {
      value = 2;
    } else if (name == routed) {
      value = 4;
    }
    if (value <= best) continue;
    best = value;
    *ipv4 = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr;
  }
  if (best > 0) return {};
  if (!interface_name.empty()) {
    return {SHARDRUN_COMM_INVALID,
            fmt::format("interface \"{}\" is not up with an IPv4 address", interface_name)};
  }
  return {SHARDRUN_COMM_UNSUPPORTED, "no network interface is up with an IPv4 address, not even loopback"};
}

common::KeyedHash job_key(const std::vector<RankAddress>& ranks) {
  std::string secrets;
  for (const RankAddress& rank : ranks) secrets += common::bytes_of(rank.secret);
  return common::KeyedHash(common::KeyedHash(ranks.front().secret)({"shardrun ofi 1", secrets}));
}

std::string ipv4_text(uint32_t ipv4) {
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &ipv4, text, sizeof(text));
  return text;
}

uint64_t random_cookie() {
  uint64_t cookie = 0;
  if (getrandom(&cookie, sizeof(cookie), GRND_NONBLOCK) != sizeof(cookie)) {
    cookie = static_cast<uint64_t>(getpid()) << 32 ^ static_cast<uint64_t>(time(nullptr));
  }
  return cookie;
}

}  // namespace shardrun::ofi
