#include "plugins/ofi/liveness.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>

#include "plugins/ofi/local_peer.h"

namespace shardrun::ofi {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHelloTime{5000};  // from a caller's connection to his name, once nobody is awaited
constexpr milliseconds kRestTime{100};
constexpr size_t kMostCallers = 64;  // without a name

Status system_error(const char* what) {
  return {SHARDRUN_COMM_IO, fmt::format("{} for the liveness links: {}", what, std::strerror(errno))};
}

sockaddr_in socket_address(uint32_t ipv4, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ipv4;
  address.sin_port = htons(port);
  return address;
}

}  // namespace

KeepAlive keep_alive(std::chrono::seconds silence) {
  constexpr int kFewest = 3, kMost = 100;  // the kernel takes 127
  const KeepAlive least{.idle = 10, .interval = 5, .probes = kFewest};
  const auto left =
      static_cast<int>(std::clamp<int64_t>(silence.count() - least.idle, least.interval * kFewest, 32767));
  const int interval = std::max(least.interval, (left + kMost - 1) / kMost);
  return {least.idle, interval, (left + interval - 1) / interval};
}

void Liveness::set_link_options(int fd) const {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keep_alive_.idle, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &keep_alive_.interval, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &keep_alive_.probes, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Status Liveness::open(uint32_t ipv4, std::chrono::seconds silence, std::unique_ptr<Liveness>* liveness) {
  auto opened = std::unique_ptr<Liveness>(new Liveness());
  opened->keep_alive_ = keep_alive(silence);
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
  opened->set_ = epoll_create1(EPOLL_CLOEXEC);
  if (opened->set_ < 0) return system_error("epoll_create1");
  if (!opened->watch(EPOLL_CTL_ADD, opened->listener_, EPOLLIN)) return system_error("epoll_ctl");
  *liveness = std::move(opened);
  return {};
}

Liveness::~Liveness() {
  for (Link& link : links_) close_link(link);
  if (listener_ >= 0) close(listener_);
  if (set_ >= 0) close(set_);
}

bool Liveness::watch(int operation, int fd, uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(set_, operation, fd, &event) == 0;
}

Status Liveness::connect(uint32_t global_rank, const std::vector<RankAddress>& ranks,
                         const common::KeyedHash& key) {
  const auto size = static_cast<uint32_t>(ranks.size());
  global_rank_ = global_rank;
  world_size_ = size;
  key_ = key;
  std::set<uint32_t> watched;
  for (uint32_t distance = 1; distance < size; distance *= 2) {
    watched.insert((global_rank + distance) % size);
    watched.insert((global_rank + size - distance) % size);
  }
  for (const uint32_t peer : watched) {
    if (peer < global_rank) awaited_.insert(peer);
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
    if (!watch(EPOLL_CTL_ADD, link.fd, link.connecting ? EPOLLOUT : EPOLLIN)) {
      close(link.fd);
      return system_error("epoll_ctl");
    }
    links_.push_back(std::move(link));
  }
  return {};
}

std::vector<Liveness::News> Liveness::hear() {
  std::vector<News> news;
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(set_, events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  bool is_called = false;
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    const auto link =
        std::find_if(links_.begin(), links_.end(), [=](const Link& one) { return one.fd == fd; });
    if (link != links_.end()) hear_link(*link, &news);
    is_called |= fd == listener_;
  }
  if (is_called) accept_links(&news);
  forget_closed();
  return news;
}

void Liveness::hear_link(Link& link, std::vector<News>* news) {
  if (!link.connecting) return read_link(link, news);
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(link.fd, SOL_SOCKET, SO_ERROR, &error, &size);
  link.connecting = false;
  if (error != 0) return lose(link, news);
  watch(EPOLL_CTL_MOD, link.fd, EPOLLIN);
  greet(link);
}

void Liveness::accept_links(std::vector<News>* news) {
  for (size_t accepted = 0; accepted <= kMostCallers + awaited_.size(); ++accepted) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // A listener that cannot be served would wake us again and again.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        rest_end_ = Clock::now() + kRestTime;
        watch(EPOLL_CTL_MOD, listener_, 0);
      }
      return;
    }
    if (who_calls(fd) == Caller::kAnotherUser) {
      close(fd);
      continue;
    }
    const auto callers = std::count_if(links_.begin(), links_.end(), is_caller);
    if (callers >= static_cast<std::ptrdiff_t>(kMostCallers + awaited_.size())) {
      Link& oldest = *std::find_if(links_.begin(), links_.end(), is_caller);
      read_link(oldest, news);  // perhaps he has said it by now
      if (is_caller(oldest)) close_link(oldest);
    }
    set_link_options(fd);
    Link link;
    link.fd = fd;
    link.called = Clock::now();
    if (!watch(EPOLL_CTL_ADD, fd, EPOLLIN)) {
      close(fd);  // its rank hears that, and takes this one for gone
      continue;
    }
    links_.push_back(std::move(link));
  }
}

bool Liveness::is_caller(const Link& link) {
  return link.fd >= 0 && link.global_rank < 0;
}

size_t Liveness::links() const {
  return static_cast<size_t>(std::count_if(links_.begin(), links_.end(),
                                           [](const Link& link) { return link.fd >= 0 && link.welcomed; }));
}

int Liveness::look_at_callers() {
  const auto now = Clock::now();
  if (rest_end_ && now >= *rest_end_) {
    rest_end_.reset();
    watch(EPOLL_CTL_MOD, listener_, EPOLLIN);
  }
  std::optional<Clock::time_point> next = rest_end_;
  for (Link& link : links_) {
    // On a machine with too much to do a rank's connection may be up for long before the rank says anything.
    if (!is_caller(link) || !awaited_.empty()) continue;
    if (now >= link.called + kHelloTime) {
      close_link(link);
    } else if (!next || link.called + kHelloTime < *next) {
      next = link.called + kHelloTime;
    }
  }
  forget_closed();
  return next ? static_cast<int>(std::chrono::ceil<milliseconds>(*next - now).count()) : -1;
}

void Liveness::forget_closed() {
  links_.erase(std::remove_if(links_.begin(), links_.end(), [](const Link& link) { return link.fd < 0; }),
               links_.end());
}

void Liveness::greet(Link& link) {
  link.connecting = false;
  send_message(link, {LivenessMessage::kHello, global_rank_, {}});
}

void Liveness::send_message(Link& link, const LivenessMessage& message) {
  if (link.fd < 0 || link.connecting || link.global_rank < 0) return;
  const std::string bytes =
      pack(message, {global_rank_, static_cast<uint32_t>(link.global_rank), link.sent++}, *key_);
  // A few hundred bytes on a quiet link always fit; a link that takes nothing belongs to a rank that is gone.
  (void)!send(link.fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Liveness::read_link(Link& link, std::vector<News>* news) {
  char buffer[4096];
  for (;;) {
    const ssize_t count = recv(link.fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      const bool is_silent =
          count < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
      lose(link, news, is_silent ? News::Kind::kSilent : News::Kind::kClosed);
      return;
    }
    link.received.append(buffer, count);
    while (link.fd >= 0 && take_message(link, news)) {
    }
    if (link.fd < 0) return;
  }
}

bool Liveness::take_message(Link& link, std::vector<News>* news) {
  const bool caller = is_caller(link);
  LivenessPlace place{caller ? UINT32_MAX : static_cast<uint32_t>(link.global_rank), global_rank_,
                      link.heard};
  LivenessMessage message;
  const Unpacked unpacked = unpack(&link.received, world_size_, &place, *key_, &message);
  if (unpacked == Unpacked::kMore) return false;
  if (unpacked == Unpacked::kForeign || (caller && awaited_.erase(place.from) == 0)) {
    lose(link, news);  // of a caller without a name this is no news: a stranger, or a rank's words once more
    return false;
  }
  ++link.heard;
  link.welcomed = true;
  link.global_rank = place.from;
  if (caller) greet(link);
  if (message.kind == LivenessMessage::kBye) {
    link.farewell = true;
    news->push_back({News::Kind::kFarewell, message.global_rank, {}});
  } else if (message.kind == LivenessMessage::kFailure) {
    news->push_back({News::Kind::kFailure, message.global_rank, std::move(message.failure)});
  }
  return true;
}

void Liveness::tell_failure(uint32_t global_rank, const Status& failure) {
  for (Link& link : links_) send_message(link, {LivenessMessage::kFailure, global_rank, failure});
}

void Liveness::lose(Link& link, std::vector<News>* news, News::Kind kind) {
  if (link.global_rank >= 0 && !link.farewell) {
    if (!link.welcomed) kind = News::Kind::kFarewell;
    news->push_back({kind, static_cast<uint32_t>(link.global_rank), {}});
  }
  close_link(link);
}

void Liveness::say_farewell() {
  std::vector<News> unheard;
  accept_links(&unheard);
  for (Link& link : links_) {
    if (!link.connecting && link.fd >= 0) read_link(link, &unheard);
  }
  for (Link& link : links_) send_message(link, {LivenessMessage::kBye, global_rank_, {}});
}

void Liveness::close_link(Link& link) {
  if (link.fd < 0) return;
  watch(EPOLL_CTL_DEL, link.fd, 0);  // a forked child may hold it open
  close(link.fd);
  link.fd = -1;
}

}  // namespace shardrun::ofi
