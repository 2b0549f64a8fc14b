#include "launcher/watch/watch.h"
#include "runtime/base/limits.h"
#include "runtime/base/say.h"
#include "runtime/base/unix_time.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardrun::launcher {
namespace {

using base::Code;
using base::Result;
using base::UniqueFd;

constexpr int kTickMilliseconds = 100;   // between judgements
constexpr int kGatherMilliseconds = 20;  // between turns
constexpr int kMostAtOnce = 1024;        // connections that are looked at together
constexpr int kMostBatches = 100;        // of them in a turn
// An answer is for all beats up to it. It takes the conductor longer than all else that it does with a beat.
constexpr double kAnswerShare = 0.25;  // of a lease, between answers
constexpr double kAskSeconds = 1.0;    // from a rank's last word to the first line to it
// If we come to our own work later than this, we were asleep, not the ranks.
constexpr double kOwnStallSeconds = 1.0;
constexpr double kEndsSeconds = 1.0;  // how often accounts of ranks that were never heard are looked for
constexpr double kEndsShare = 0.05;   // of the time, at most, for that
constexpr double kLongestLookSeconds = 10.0;  // for who looks to read all

// The thread that says it listens for heartbeats: a terminal that nobody reads may cost it a line, not its time.
void tell(std::string_view line) {
  base::say(STDERR_FILENO, line, std::chrono::milliseconds(0));
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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

// Returns for how long the machine at the other end has acknowledged nothing; nullopt where the kernel does not say.
std::optional<double> seconds_since_acknowledged(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return info.tcpi_last_ack_recv * 1e-3;
}

std::string describe(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return fmt::format("{} port {}", text, ntohs(address.sin_port));
}

}  // namespace

Result<std::unique_ptr<Watch>> Watch::start(WatchOptions options) {
  // A rank needs a connection, and under the local scheduler two pipes and one of PMIx, too; the limit that we were started with
  // is left alone where it is enough.
  base::make_room_for_descriptors(4 * static_cast<int64_t>(options.rank_nodes.size()) + 256);
  contract::WatchPlace place;
  ASSIGN_OR_RETURN(auto listener, listen_on(options.this_machine_only, place.port));
  ASSIGN_OR_RETURN(auto key, contract::random_key());
  place.key = common::to_hex(common::bytes_of(key));
  place.lease_seconds = kLeaseShare * options.policy.node_timeout_seconds;
  place.addresses = options.this_machine_only ? std::vector<std::string>{"127.0.0.1"} : own_addresses();
  UniqueFd alarm_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd wake_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!alarm_event || !wake_event) return base::errno_error(Code::kIo, "eventfd", errno);
  UniqueFd news(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event woken{EPOLLIN, {.ptr = nullptr}};
  if (!news || ::epoll_ctl(news.get(), EPOLL_CTL_ADD, wake_event.get(), &woken) != 0)
    return base::errno_error(Code::kIo, "epoll", errno);
  RETURN_IF_ERROR(
      base::write_file_atomically(options.place_path, to_json(place), 0600, base::Durability::kProcess));
  std::unique_ptr<Watch> watch(new Watch(std::move(options), std::move(listener), std::move(alarm_event),
                                         std::move(wake_event), std::move(news)));
  watch->place_ = std::move(place);
  watch->key_ = key;
  watch->thread_ = std::thread([raw = watch.get()] { raw->serve(); });
  return watch;
}

Watch::Watch(WatchOptions options, UniqueFd listener, UniqueFd alarm_event, UniqueFd wake_event,
             UniqueFd news)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      alarm_event_(std::move(alarm_event)),
      wake_event_(std::move(wake_event)),
      news_(std::move(news)),
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
  while (gather(last)) {
    const double now = monotonic_seconds();
    if (now - last > kOwnStallSeconds) rules_.forgive(now - last);
    last = now;
    hear_peers(now);
    drop_late(now);
    accept_peers(now);
    if (now >= next_judgement_) {
      next_judgement_ = now + kTickMilliseconds * 1e-3;
      ask_silent(now);
      judge(now);
    }
    send_orders();
  }
}

// Lets news gather since the turn before, and waits for some. Returns false when it is time to end.
bool Watch::gather(double last_turn) {
  const auto milliseconds_to = [](double when) {
    return static_cast<int>(
        std::clamp((when - monotonic_seconds()) * 1e3 + 1.0, 0.0, 1.0 * kTickMilliseconds));
  };
  pollfd woken{wake_event_.get(), POLLIN, 0};
  if (::poll(&woken, 1, milliseconds_to(last_turn + kGatherMilliseconds * 1e-3)) == 0) {
    std::array<pollfd, 2> any = {{{news_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
    (void)::poll(any.data(), any.size(), milliseconds_to(next_judgement_));
  }
  eventfd_t ignored = 0;
  ::eventfd_read(wake_event_.get(), &ignored);
  const std::lock_guard lock(mutex_);
  return !stopping_;
}

void Watch::hear_peers(double now) {
  std::array<epoll_event, kMostAtOnce> events;
  for (int batch = 0, count = kMostAtOnce; batch < kMostBatches && count == kMostAtOnce; ++batch) {
    count = ::epoll_wait(news_.get(), events.data(), kMostAtOnce, 0);
    for (int i = 0; i < count; ++i) {
      auto* const peer = static_cast<Peer*>(events[i].data.ptr);
      if (peer != nullptr) hear(*peer, now);  // else it is the wake event
    }
  }
}

void Watch::hear(Peer& peer, double now) {
  const bool looked = !peer.to_send.empty();
  if (!(looked ? send_more(peer) : read_peer(peer, now))) {
    if (peer.hung_up && peer.speaks_for_others) rules_.on_closed(peer.global_rank, now);
    drop(peer);
  } else if (!looked && !peer.to_send.empty()) {
    note(peer, EPOLLOUT);
  }
}

void Watch::drop_late(double now) {
  for (auto at = visitors_.begin(); at != visitors_.end();) {
    Peer& peer = *at++;
    const double age = now - peer.accepted;
    if (age > (peer.proven ? kLongestLookSeconds : kHelloSeconds)) drop(peer);
  }
}

void Watch::drop(Peer& peer) {
  if (!peer.proven && !peer.hung_up) note_stranger(peer);
  // Closing is not enough while a process that is just being started has a copy of the descriptor.
  (void)::epoll_ctl(news_.get(), EPOLL_CTL_DEL, peer.socket.get(), nullptr);
  (peer.global_rank < 0 ? visitors_ : supervisors_).erase(peer.place);
}

// Says what of the peer is waited for, of which the first time makes it known.
void Watch::note(const Peer& peer, uint32_t events) const {
  epoll_event wanted{events, {.ptr = const_cast<Peer*>(&peer)}};
  const int operation = events == EPOLLIN ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  (void)::epoll_ctl(news_.get(), operation, peer.socket.get(), &wanted);
}

void Watch::accept_peers(double now) {
  auto unproven =
      std::count_if(visitors_.begin(), visitors_.end(), [](const Peer& peer) { return !peer.proven; });
  for (size_t accepted = 0; accepted < most_unproven(); ++accepted) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    UniqueFd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      const bool none_left = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (none_left) (void)drop_oldest_unproven();
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
    Peer& peer = visitors_.emplace_back(Peer{
        .socket = std::move(socket), .from = describe(address), .lines = std::move(lines), .accepted = now});
    peer.place = std::prev(visitors_.end());
    note(peer, EPOLLIN);
  }
}

// Returns whether there was one.
bool Watch::drop_oldest_unproven() {
  const auto oldest =
      std::find_if(visitors_.begin(), visitors_.end(), [](const Peer& peer) { return !peer.proven; });
  if (oldest == visitors_.end()) return false;
  drop(*oldest);
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
  return peer.received.size() <= contract::kLongestLine;
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
  if (const auto words = contract::parse_rank_words(*text)) return on_words(peer, *words, now);
  const contract::RankWord word{peer.global_rank, contract::parse_beat(*text)};
  if (!word.beat && *text != contract::kFarewellLine) return false;
  return on_words(peer, {&word, 1}, now);
}

// Takes all or nothing. An answer to the peer's own beat is one to all that came before it.
bool Watch::on_words(Peer& peer, std::span<const contract::RankWord> words, double now) {
  const std::vector<std::string>& nodes = options_.rank_nodes;
  for (const contract::RankWord& word : words) {
    const auto rank = static_cast<size_t>(word.global_rank);
    if (rank >= nodes.size() || nodes[rank] != nodes[static_cast<size_t>(peer.global_rank)]) return false;
  }
  for (const contract::RankWord& word : words) {
    peer.speaks_for_others |= word.global_rank != peer.global_rank;
    if (!word.beat) {
      rules_.on_farewell(word.global_rank);
      continue;
    }
    rules_.on_beat(word.global_rank, *word.beat, now);
    if (word.global_rank != peer.global_rank || now - peer.answered < kAnswerShare * place_.lease_seconds)
      continue;
    peer.answered = now;
    // A peer that has hung up by now does not read it, but what it said last still counts.
    (void)send_line(peer.socket.get(), peer.lines.seal(fmt::format("ack {}", word.beat->sequence)));
  }
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
  supervisors_.splice(supervisors_.end(), visitors_, peer.place);
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

// A supervisor may be silent because its machine is gone, or because it gets no CPU. The kernel of a machine that is there
// acknowledges what is sent to it, whoever reads it.
void Watch::ask_silent(double now) {
  if (!rules_.is_anybody_silent(now, kAskSeconds)) return;
  for (Peer& peer : supervisors_) {
    const RankWatch& rank = rules_.ranks()[peer.global_rank];
    if (!rank.heard || rank.left || now - rank.last_heard < kAskSeconds) continue;
    if (now - peer.asked >= contract::kBeatSeconds) {
      peer.asked = now;
      (void)send_line(peer.socket.get(), peer.lines.seal(contract::kAreYouThereLine));
    }
    if (const auto ago = seconds_since_acknowledged(peer.socket.get()))
      rules_.on_acknowledged(peer.global_rank, now - *ago);
  }
}

// In a thread, for a file server may not answer for a while, and the supervisors would take our silence for that of a machine
// which is cut off.
void Watch::look_for_ends(double now) {
  if (ends_.valid()) {
    if (ends_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    for (const int rank : ends_.get()) rules_.on_farewell(rank);
    next_look_for_ends_ = now + std::max(kEndsSeconds, (now - ends_began_) / kEndsShare);
  }
  if (!options_.ended || now < next_look_for_ends_) return;
  std::vector<int> missing = rules_.unheard();
  const std::vector<int> silent = rules_.silent(now);
  missing.insert(missing.end(), silent.begin(), silent.end());
  std::set<std::string> nodes;
  for (const int rank : missing) nodes.insert(options_.rank_nodes[static_cast<size_t>(rank)]);
  next_look_for_ends_ = now + kEndsSeconds;
  if (nodes.empty()) return;
  ends_began_ = now;
  try {
    ends_ = std::async(std::launch::async, options_.ended, std::move(nodes));
  } catch (const std::system_error&) {
    // No thread may be started: the next look may have one.
  }
}

void Watch::judge(double now) {
  look_for_ends(now);
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
  // Whoever is silent may have left an account.
  if (ends_.valid() && now - ends_began_ > kOwnStallSeconds && now - ends_began_ < kStorageSeconds) return;
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
  if (orders.empty()) return;
  for (Peer& peer : supervisors_) {
    for (; peer.ordered < orders.size(); ++peer.ordered)
      (void)send_line(peer.socket.get(), peer.lines.seal(orders[peer.ordered]));
  }
}

}  // namespace shardrun::launcher
