#include "launcher/watch/watch.h"
#include "runtime/base/say.h"
#include "runtime/base/unix_time.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Result;
using base::UniqueFd;

constexpr int kTickMilliseconds = 100;
// If we come to our own work later than this, we were asleep, not the ranks.
constexpr double kOwnStallSeconds = 1.0;
constexpr size_t kLongestLine = 4096;
constexpr double kEndsSeconds = 1.0;  // how often accounts of ranks that were never heard are looked for
constexpr double kLongestLookSeconds = 10.0;  // for who looks to read all

// The thread that says it listens for heartbeats: a terminal that nobody reads may cost it a line, not its time.
void tell(std::string_view line) {
  base::say(STDERR_FILENO, line, std::chrono::milliseconds(0));
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A rank needs a connection, and under the local scheduler two pipes and one of PMIx, too; the limit that we were started with
// is left alone where it is enough.
void make_room_for(size_t ranks) {
  struct rlimit limit {};
  const rlim_t wanted = 4 * ranks + 256;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Result<UniqueFd> listen_on(bool loopback, uint16_t& port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return base::errno_error(Code::kIo, "a socket for heartbeats", errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t length = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(fd.get(), 1024) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return base::errno_error(Code::kIo, "listening for heartbeats", errno);
  }
  port = ntohs(address.sin_port);
  return fd;
}

// Returns the addresses of this machine at which other machines may reach it.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET_ADDRSTRLEN] = {};
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text) != nullptr) addresses.emplace_back(text);
  }
  ::freeifaddrs(list);
  return addresses;
}

std::vector<RankWatch> ranks_of(const std::vector<std::string>& nodes) {
  std::vector<RankWatch> ranks(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    ranks[i].global_rank = static_cast<int>(i);
    ranks[i].node = nodes[i];
  }
  return ranks;
}

bool send_line(int fd, const std::string& line) {
  const std::string bytes = line + "\n";
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

std::string describe(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return fmt::format("{} port {}", text, ntohs(address.sin_port));
}

}  // namespace

Result<std::unique_ptr<Watch>> Watch::start(WatchOptions options) {
  make_room_for(options.rank_nodes.size());
  contract::WatchPlace place;
  ASSIGN_OR_RETURN(auto listener, listen_on(options.this_machine_only, place.port));
  ASSIGN_OR_RETURN(auto key, contract::random_key());
  place.key = common::to_hex(common::bytes_of(key));
  place.lease_seconds = kLeaseShare * options.policy.node_timeout_seconds;
  place.addresses = options.this_machine_only ? std::vector<std::string>{"127.0.0.1"} : own_addresses();
  UniqueFd alarm_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd wake_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!alarm_event || !wake_event) return base::errno_error(Code::kIo, "eventfd", errno);
  RETURN_IF_ERROR(
      base::write_file_atomically(options.place_path, to_json(place), 0600, base::Durability::kProcess));
  std::unique_ptr<Watch> watch(
      new Watch(std::move(options), std::move(listener), std::move(alarm_event), std::move(wake_event)));
  watch->place_ = std::move(place);
  watch->key_ = key;
  watch->thread_ = std::thread([raw = watch.get()] { raw->serve(); });
  return watch;
}

Watch::Watch(WatchOptions options, UniqueFd listener, UniqueFd alarm_event, UniqueFd wake_event)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      alarm_event_(std::move(alarm_event)),
      wake_event_(std::move(wake_event)),
      rules_(options_.policy, ranks_of(options_.rank_nodes)) {}

Watch::~Watch() {
  stop();
}

void Watch::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ::eventfd_write(wake_event_.get(), 1);
  thread_.join();
}

std::optional<Watch::Raised> Watch::raised() const {
  const std::lock_guard lock(mutex_);
  return raised_;
}

std::vector<Straggler> Watch::stragglers() const {
  const std::lock_guard lock(mutex_);
  return stragglers_;
}

Watch::Strangers Watch::strangers() const {
  const std::lock_guard lock(mutex_);
  return strangers_;
}

void Watch::note_stranger(const Peer& peer) {
  const std::lock_guard lock(mutex_);
  ++strangers_.count;
  strangers_.newest = peer.from;
}

void Watch::serve() {
  double last = monotonic_seconds();
  while (true) {
    // A listener that cannot be served would wake us again and again, so it waits for the next turn.
    std::vector<pollfd> fds = {{wake_event_.get(), POLLIN, 0}, {rest_ ? -1 : listener_.get(), POLLIN, 0}};
    rest_ = false;
    for (const Peer& peer : peers_) {
      fds.push_back({peer.socket.get(), static_cast<short>(peer.to_send.empty() ? POLLIN : POLLOUT), 0});
    }
    ::poll(fds.data(), fds.size(), kTickMilliseconds);
    if (fds[0].revents != 0) {
      eventfd_t ignored = 0;
      ::eventfd_read(wake_event_.get(), &ignored);
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    const double now = monotonic_seconds();
    if (now - last > kOwnStallSeconds) rules_.forgive(now - last);
    last = now;
    for (size_t i = peers_.size(); i-- > 0;) {
      const double age = now - peers_[i].accepted;
      const bool looks = !peers_[i].to_send.empty();
      const bool late = (!peers_[i].proven && age > kHelloSeconds) || (looks && age > kLongestLookSeconds);
      if (late || (fds[2 + i].revents != 0 && !(looks ? send_more(peers_[i]) : read_peer(peers_[i], now)))) {
        if (!peers_[i].proven && !peers_[i].hung_up) note_stranger(peers_[i]);
        peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (fds[1].revents != 0) accept_peers(now);
    judge(now);
    send_orders();
  }
}

void Watch::accept_peers(double now) {
  auto unproven = std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.proven; });
  for (size_t accepted = 0; accepted < most_unproven(); ++accepted) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    UniqueFd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      const bool none_left = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      rest_ = none_left && !drop_oldest_unproven();
      return;
    }
    auto nonce = contract::random_key();
    if (!nonce) return;
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (unproven < static_cast<std::ptrdiff_t>(most_unproven())) {
      ++unproven;
    } else {
      drop_oldest_unproven();
    }
    contract::SealedLines lines(contract::SealedLines::Side::kServer, key_, *nonce);
    (void)send_line(socket.get(), lines.opening());
    peers_.push_back(
        {std::move(socket), describe(address), std::move(lines), false, -1, now, "", "", false, 0});
  }
}

// Returns whether there was one.
bool Watch::drop_oldest_unproven() {
  const auto oldest =
      std::find_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.proven; });
  if (oldest == peers_.end()) return false;
  note_stranger(*oldest);
  peers_.erase(oldest);
  return true;
}

// Returns false when the connection is over.
bool Watch::read_peer(Peer& peer, double now) {
  std::array<char, 4096> chunk;
  const ssize_t got = ::recv(peer.socket.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  peer.hung_up = got <= 0;
  if (peer.hung_up) return false;
  peer.received.append(chunk.data(), got);
  for (size_t end = 0; (end = peer.received.find('\n')) != std::string::npos;) {
    const std::string line = peer.received.substr(0, end);
    peer.received.erase(0, end + 1);
    if (!on_line(peer, line, now)) return false;
  }
  return peer.received.size() <= kLongestLine;
}

// Returns false when all is sent, or the connection is over.
bool Watch::send_more(Peer& peer) {
  const ssize_t sent =
      ::send(peer.socket.get(), peer.to_send.data(), peer.to_send.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  peer.to_send.erase(0, sent);
  return !peer.to_send.empty();
}

std::string Watch::describe_ranks(contract::SealedLines& lines, double now) const {
  std::string text = lines.seal(contract::kWelcomeLine) + "\n";
  for (const RankWatch& rank : rules_.ranks()) {
    const auto ago = rank.heard ? static_cast<int64_t>((now - rank.last_heard) * 1000.0) : 0;
    text += lines.seal(to_line(contract::RankSight{rank.global_rank, rank.node, rank.heard, rank.left,
                                                   std::max<int64_t>(ago, 0), rank.beat})) +
            "\n";
  }
  return text + lines.seal(contract::kEndLine) + "\n";
}

bool Watch::on_line(Peer& peer, const std::string& line, double now) {
  if (!peer.lines.open()) return peer.lines.take_opening(line);
  const auto text = peer.lines.unseal(line);
  if (!text) return false;
  if (!peer.proven) return on_first_line(peer, *text, now);
  if (peer.global_rank < 0) return false;
  if (*text == contract::kFarewellLine) {
    rules_.on_farewell(peer.global_rank);
    return true;
  }
  const auto beat = contract::parse_beat(*text);
  if (!beat) return false;
  rules_.on_beat(peer.global_rank, *beat, now);
  // A peer that has hung up by now does not read it, but what it said last still counts.
  (void)send_line(peer.socket.get(), peer.lines.seal(fmt::format("ack {}", beat->sequence)));
  return true;
}

bool Watch::on_first_line(Peer& peer, const std::string& text, double now) {
  peer.proven = true;
  if (text == contract::kLookLine) {
    peer.to_send = describe_ranks(peer.lines, now);
    return true;
  }
  const auto hello = contract::parse_hello(text);
  if (!hello || hello->global_rank >= static_cast<int>(options_.rank_nodes.size())) return false;
  peer.global_rank = hello->global_rank;
  // As with an answer to a beat: whoever has hung up by now may have said more before.
  (void)send_line(peer.socket.get(), peer.lines.seal(contract::kWelcomeLine));
  return true;
}

void Watch::tell_unheard(const std::vector<int>& ranks) const {
  if (ranks.empty()) return;
  tell(fmt::format(
      "shardrun: {} of {} ranks were not heard within {:.0f} s, among them rank {} on node {}: they run "
      "unwatched, and the loss of their nodes would go unnoticed; let them connect to TCP port {} of {}\n",
      ranks.size(), options_.rank_nodes.size(), kUnheardSeconds, ranks.front(),
      options_.rank_nodes[ranks.front()], place_.port, fmt::join(place_.addresses, " or ")));
}

void Watch::judge(double now) {
  if (options_.has_ended && now - last_look_for_ends_ > kEndsSeconds) {
    last_look_for_ends_ = now;
    for (const int rank : rules_.unheard()) {
      if (options_.has_ended(rank)) rules_.on_farewell(rank);
    }
  }
  tell_unheard(rules_.take_unheard(now));
  if (const auto fresh = rules_.take_stragglers(now); !fresh.empty()) {
    for (const Straggler& slow : fresh) {
      tell(fmt::format(
          "shardrun: rank {} on node {} is slow: busy {:.3f} s in each step, the median rank {:.3f} s\n",
          slow.global_rank, slow.node, slow.busy_seconds, slow.median_seconds));
    }
    const std::lock_guard lock(mutex_);
    stragglers_.insert(stragglers_.end(), fresh.begin(), fresh.end());
  }
  if (raised_) return;  // only this thread writes it
  const auto alarm = rules_.find_alarm(now);
  if (!alarm) return;
  {
    const std::lock_guard lock(mutex_);
    raised_ = Raised{*alarm, base::unix_now(), now - alarm->since};
  }
  order_kill(alarm->line);
  send_orders();
  ::eventfd_write(alarm_event_.get(), 1);
}

void Watch::order_signal(int signal) {
  order(fmt::format("{}{}", contract::kSignalOrder, signal));
}

void Watch::order_kill(const std::string& reason) {
  order(std::string(contract::kKillOrder) + reason);
}

void Watch::order(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(std::move(line));
  }
  ::eventfd_write(wake_event_.get(), 1);
}

void Watch::send_orders() {
  std::vector<std::string> orders;
  {
    const std::lock_guard lock(mutex_);
    orders = orders_;
  }
  for (Peer& peer : peers_) {
    for (; peer.global_rank >= 0 && peer.ordered < orders.size(); ++peer.ordered)
      (void)send_line(peer.socket.get(), peer.lines.seal(orders[peer.ordered]));
  }
}

}  // namespace shardrun::launcher
