#include "runtime/rank/node_relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace shardrun::rank {
namespace {

using base::UniqueFd;

constexpr int kMostAtOnce = 64;

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
};

// An abstract name: a zero, and what only holders of the key can compute before it is there.
Name name_of(const common::Key& key, const std::string& node) {
  const std::string text =
      "shardrun-relay-" + contract::proof_of_key(key, "shardrun relay 1", node).substr(0, 32);
  Name name;
  name.address.sun_family = AF_UNIX;
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

std::string proof_of(const common::Key& key, std::string_view hello) {
  return contract::proof_of_key(key, "shardrun relay greeting 1", hello);
}

bool is_ours(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

void send_line(int socket, std::string_view text) {
  const std::string bytes = std::string(text) + "\n";
  (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

std::optional<NodeRelay> NodeRelay::open(const common::Key& key, const std::string& node, size_t most) {
  const Name name = name_of(key, node);
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
      ::listen(listener.get(), static_cast<int>(most)) != 0)
    return std::nullopt;
  UniqueFd news(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event connects{EPOLLIN, {.ptr = nullptr}};
  if (!news || ::epoll_ctl(news.get(), EPOLL_CTL_ADD, listener.get(), &connects) != 0) return std::nullopt;
  return NodeRelay(key, node, most, std::move(listener), std::move(news));
}

NodeRelay::NodeRelay(const common::Key& key, std::string node, size_t most, UniqueFd listener, UniqueFd news)
    : key_(key),
      node_(std::move(node)),
      most_(most),
      listener_(std::move(listener)),
      news_(std::move(news)) {}

UniqueFd NodeRelay::connect(const common::Key& key, const std::string& node) {
  const Name name = name_of(key, node);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0)
    return {};
  if (is_ours(fd.get())) return fd;
  fd.reset();
  errno = EACCES;
  return {};
}

std::string NodeRelay::greeting(const common::Key& key, const contract::Hello& hello) {
  const std::string line = to_line(hello);
  return proof_of(key, line) + ' ' + line;
}

void NodeRelay::service(Clock::time_point now) {
  std::array<epoll_event, kMostAtOnce> events;
  for (int count = kMostAtOnce; count == kMostAtOnce;) {
    count = ::epoll_wait(news_.get(), events.data(), kMostAtOnce, 0);
    for (int i = 0; i < count; ++i) {
      auto* const client = static_cast<Client*>(events[static_cast<size_t>(i)].data.ptr);
      if (client == nullptr) {
        accept_clients();
      } else if (!read_client(*client, now)) {
        (void)::epoll_ctl(news_.get(), EPOLL_CTL_DEL, client->socket.get(), nullptr);
        clients_.erase(client->place);
      }
    }
  }
}

void NodeRelay::accept_clients() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    if (clients_.size() >= most_ || !is_ours(socket.get())) continue;
    Client& client = clients_.emplace_back(Client{.socket = std::move(socket)});
    client.place = std::prev(clients_.end());
    epoll_event says{EPOLLIN, {.ptr = &client}};
    if (::epoll_ctl(news_.get(), EPOLL_CTL_ADD, client.socket.get(), &says) != 0) clients_.pop_back();
  }
}

// Returns false when the connection is over. A beat of who has hung up without a farewell may be old, where we were asleep.
bool NodeRelay::read_client(Client& client, Clock::time_point now) {
  std::array<char, 4096> chunk;
  while (true) {
    const ssize_t got = ::recv(client.socket.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    client.received.append(chunk.data(), static_cast<size_t>(got));
    for (size_t end = 0; (end = client.received.find('\n')) != std::string::npos;) {
      const std::string line = client.received.substr(0, end);
      client.received.erase(0, end + 1);
      if (!on_line(client, line, now)) return false;
    }
    if (client.received.size() > contract::kLongestLine) return false;
  }
}

bool NodeRelay::on_line(Client& client, std::string_view line, Clock::time_point now) {
  if (client.global_rank < 0) return on_greeting(client, line);
  const auto beat = contract::parse_beat(line);
  if (!beat && line != contract::kFarewellLine) return false;
  if (!due_) due_ = now + kGather;
  if (beat) {
    client.waiting = beat;
    return true;
  }
  if (client.waiting) last_words_.push_back({client.global_rank, client.waiting});
  last_words_.push_back({client.global_rank, std::nullopt});
  return false;
}

bool NodeRelay::on_greeting(Client& client, std::string_view line) {
  const size_t proof_end = line.find(' ');
  if (proof_end == std::string_view::npos) return false;
  const std::string_view text = line.substr(proof_end + 1);
  const auto hello = contract::parse_hello(text);
  if (!common::same_bytes(line.substr(0, proof_end), proof_of(key_, text)) || !hello || hello->node != node_)
    return false;
  client.global_rank = hello->global_rank;
  for (const std::string& order : orders_) send_line(client.socket.get(), order);
  return true;
}

std::vector<contract::RankWord> NodeRelay::take_words() {
  due_.reset();
  std::vector<contract::RankWord> words = std::exchange(last_words_, {});
  for (Client& client : clients_) {
    if (!client.waiting) continue;
    client.passed_on = client.waiting->sequence;
    words.push_back({client.global_rank, std::exchange(client.waiting, std::nullopt)});
  }
  return words;
}

void NodeRelay::on_sent(uint64_t sequence) {
  for (Client& client : clients_)
    if (client.passed_on > 0) client.covered.emplace_back(sequence, client.passed_on);
}

void NodeRelay::on_acknowledged(uint64_t sequence) {
  for (Client& client : clients_) {
    const auto beyond = std::find_if(client.covered.begin(), client.covered.end(),
                                     [&](const auto& pair) { return pair.first > sequence; });
    if (beyond == client.covered.begin()) continue;
    send_line(client.socket.get(), fmt::format("ack {}", std::prev(beyond)->second));
    client.covered.erase(client.covered.begin(), beyond);
  }
}

void NodeRelay::on_disconnected() {
  for (Client& client : clients_) client.covered.clear();
}

void NodeRelay::pass_on(std::string_view order) {
  orders_.emplace_back(order);
  for (const Client& client : clients_)
    if (client.global_rank >= 0) send_line(client.socket.get(), order);
}

}  // namespace shardrun::rank
