#include "plugins/ofi/liveness.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

namespace shardrun::ofi {
namespace {

enum MessageKind : uint32_t { kHello = 1, kBye = 2, kFailureNews = 3 };
constexpr size_t kLongestText = 1000;
constexpr size_t kMostRanks = 256;  // at most this many ranks of a failure are named

Status system_error(const char* what) {
  return {SHARDRUN_COMM_IO, fmt::format("{} for the liveness links: {}", what, std::strerror(errno))};
}

// A machine that loses power sends nothing: ask after 10 s of silence, give up 15 s later.
void set_link_options(int fd) {
  const int on = 1, idle_seconds = 10, interval_seconds = 5, probes = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof(interval_seconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

sockaddr_in socket_address(uint32_t ipv4, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ipv4;
  address.sin_port = htons(port);
  return address;
}

}  // namespace

struct Liveness::Header {
  uint32_t kind;
  uint32_t global_rank;
  uint64_t cookie;  // the cookie of the rank that the message is sent to
  int32_t code;
  uint32_t text_bytes;  // length of the text that follows
  uint32_t rank_count;  // number of the failure's ranks, 4 bytes each, which follow the text
  uint32_t reserved;

  size_t following_bytes() const { return text_bytes + rank_count * sizeof(uint32_t); }
};

Status Liveness::open(uint32_t ipv4, uint64_t cookie, std::unique_ptr<Liveness>* liveness) {
  auto opened = std::unique_ptr<Liveness>(new Liveness());
  opened->cookie_ = cookie;
  opened->listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (opened->listener_ < 0) return system_error("socket");
  sockaddr_in address = socket_address(ipv4, 0);
  socklen_t size = sizeof(address);
  if (bind(opened->listener_, reinterpret_cast<sockaddr*>(&address), size) != 0) return system_error("bind");
  if (listen(opened->listener_, 256) != 0) return system_error("listen");
  if (getsockname(opened->listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return system_error("getsockname");
  }
  opened->port_ = ntohs(address.sin_port);
  *liveness = std::move(opened);
  return {};
}

Liveness::~Liveness() {
  for (Link& link : links_) close_link(link);
  if (listener_ >= 0) close(listener_);
}

Status Liveness::connect(uint32_t global_rank, const std::vector<RankAddress>& ranks) {
  global_rank_ = global_rank;
  for (const RankAddress& rank : ranks) cookies_.push_back(rank.cookie);
  const auto size = static_cast<uint32_t>(ranks.size());
  std::set<uint32_t> watched;
  for (uint32_t distance = 1; distance < size; distance *= 2) {
    watched.insert((global_rank + distance) % size);
    watched.insert((global_rank + size - distance) % size);
  }
  for (const uint32_t peer : watched) {
    if (peer <= global_rank) continue;
    Link link;
    link.global_rank = peer;
    link.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link.fd < 0) return system_error("socket");
    set_link_options(link.fd);
    const sockaddr_in address = socket_address(ranks[peer].ipv4, ranks[peer].liveness_port);
    if (::connect(link.fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      greet(link);
    } else if (errno == EINPROGRESS) {
      link.connecting = true;
    } else {
      close(link.fd);
      return {SHARDRUN_COMM_PEER_LOST,
              fmt::format("rank {} at {} port {} refuses the liveness link: {}", peer,
                          ipv4_text(ranks[peer].ipv4), ranks[peer].liveness_port, std::strerror(errno)),
              {peer}};
    }
    links_.push_back(std::move(link));
  }
  return {};
}

void Liveness::add_to(std::vector<pollfd>* poll_set) const {
  poll_set->push_back({listener_, POLLIN, 0});
  for (const Link& link : links_) {
    poll_set->push_back({link.fd, static_cast<short>(link.connecting ? POLLOUT : POLLIN), 0});
  }
}

std::vector<Liveness::News> Liveness::handle(const std::vector<pollfd>& poll_set, size_t first) {
  std::vector<News> news;
  const size_t known = links_.size();
  for (size_t i = 0; i < known; ++i) {
    Link& link = links_[i];
    if (link.fd < 0 || poll_set[first + 1 + i].revents == 0) continue;
    if (link.connecting) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(link.fd, SOL_SOCKET, SO_ERROR, &error, &size);
      link.connecting = false;
      if (error == 0) {
        greet(link);
      } else {
        lose(link, &news);
      }
    } else {
      read_link(link, &news);
    }
  }
  if (poll_set[first].revents != 0) accept_links();
  links_.erase(std::remove_if(links_.begin(), links_.end(), [](const Link& link) { return link.fd < 0; }),
               links_.end());
  return news;
}

void Liveness::accept_links() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    set_link_options(fd);
    Link link;
    link.fd = fd;
    links_.push_back(std::move(link));
  }
}

void Liveness::greet(Link& link) {
  link.connecting = false;
  send_message(link, kHello, global_rank_);
}

void Liveness::send_message(const Link& link, uint32_t kind, uint32_t global_rank, const Status& failure) {
  if (link.fd < 0 || link.connecting || link.global_rank < 0) return;
  const std::string shown = failure.text.substr(0, kLongestText);
  const size_t ranks = std::min(failure.ranks.size(), kMostRanks);
  const Header header{kind,
                      global_rank,
                      cookies_[link.global_rank],
                      failure.code,
                      static_cast<uint32_t>(shown.size()),
                      static_cast<uint32_t>(ranks),
                      0};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += shown;
  bytes.append(reinterpret_cast<const char*>(failure.ranks.data()), ranks * sizeof(uint32_t));
  // A few hundred bytes on a quiet link always fit; a link that takes nothing belongs to a rank that is gone.
  (void)!send(link.fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Liveness::read_link(Link& link, std::vector<News>* news) {
  char buffer[4096];
  for (;;) {
    const ssize_t count = recv(link.fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      lose(link, news);
      return;
    }
    link.received.append(buffer, count);
    while (link.fd >= 0 && take_message(link, news)) {
    }
    if (link.fd < 0) return;
  }
}

bool Liveness::take_message(Link& link, std::vector<News>* news) {
  Header header;
  if (link.received.size() < sizeof(header)) return false;
  std::memcpy(&header, link.received.data(), sizeof(header));
  if (header.cookie != cookie_ || header.text_bytes > kLongestText || header.rank_count > kMostRanks ||
      header.global_rank >= cookies_.size()) {
    close_link(link);  // a stranger
    return false;
  }
  if (link.received.size() < sizeof(header) + header.following_bytes()) return false;
  Status failure{header.code, link.received.substr(sizeof(header), header.text_bytes)};
  failure.ranks.resize(header.rank_count);
  std::copy_n(link.received.data() + sizeof(header) + header.text_bytes, header.rank_count * sizeof(uint32_t),
              reinterpret_cast<char*>(failure.ranks.data()));
  link.received.erase(0, sizeof(header) + header.following_bytes());
  link.welcomed = true;
  if (header.kind == kHello) {
    const bool caller = link.global_rank < 0;
    link.global_rank = header.global_rank;
    if (caller) greet(link);
  } else if (header.kind == kBye) {
    link.farewell = true;
    news->push_back({News::Kind::kFarewell, header.global_rank, {}});
  } else if (header.kind == kFailureNews) {
    const auto stranger = [this](uint32_t rank) { return rank >= cookies_.size(); };
    failure.ranks.erase(std::remove_if(failure.ranks.begin(), failure.ranks.end(), stranger),
                        failure.ranks.end());
    news->push_back({News::Kind::kFailure, header.global_rank, std::move(failure)});
  }
  return true;
}

void Liveness::tell_failure(uint32_t global_rank, const Status& failure) {
  for (const Link& link : links_) send_message(link, kFailureNews, global_rank, failure);
}

void Liveness::lose(Link& link, std::vector<News>* news) {
  if (link.global_rank >= 0 && !link.farewell) {
    const auto kind = link.welcomed ? News::Kind::kClosed : News::Kind::kFarewell;
    news->push_back({kind, static_cast<uint32_t>(link.global_rank), {}});
  }
  close_link(link);
}

void Liveness::say_farewell() {
  accept_links();
  std::vector<News> unheard;
  for (Link& link : links_) {
    if (!link.connecting && link.fd >= 0) read_link(link, &unheard);
  }
  for (const Link& link : links_) send_message(link, kBye, global_rank_);
}

void Liveness::close_link(Link& link) {
  if (link.fd >= 0) close(link.fd);
  link.fd = -1;
}

}  // namespace shardrun::ofi
