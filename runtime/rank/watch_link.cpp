#include "runtime/rank/watch_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "runtime/record/run_dir.h"

namespace shardrun::rank {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDeadTime{
    10'000};  // of a closed port, before a job ends whose ranks wait for no other conductor
constexpr milliseconds kBeat{static_cast<int64_t>(contract::kBeatSeconds * 1000)};
// A program that is over by then needs no link: who starts thousands of them would wait for as many connections.
constexpr milliseconds kBegin{100};
constexpr milliseconds kConnectTime{1000};  // limit for one address, until the conductor has proved itself
constexpr size_t kMostUnanswered = 64;      // unanswered beats after which a connection is given up
// If we come to our own work later than this, we were asleep, not the network.
constexpr milliseconds kOwnStall{1500};
// How long reading the epoch may take at least, and how often it is read while the conductor is silent.
constexpr std::chrono::duration<double> kLookTime{2.0};
constexpr milliseconds kNextLook{1000};
// The conductor acknowledges once a second.
constexpr milliseconds kRelayPatience{1500};
constexpr milliseconds kFirstPatience{5000};  // where many start at once, and none of them is missed yet
constexpr milliseconds kRelayPause{60'000};
constexpr milliseconds kRelayBegins{10};  // from its name to its first connection
constexpr size_t kWordsOfALine = 16;      // which the longest of them do not make longer than kLongestLine

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

std::optional<Address> parse_address(const std::string& text, uint16_t port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof *v4;
  } else if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof *v6;
  } else {
    return std::nullopt;
  }
  return address;
}

}  // namespace

WatchLink::WatchLink(const contract::RankEnv& env, std::chrono::seconds conductor_timeout)
    : env_(env), conductor_timeout_(conductor_timeout) {
  const auto now = Clock::now();
  last_service_ = next_beat_ = next_look_ = next_relay_ = now;
  connect_deadline_ = now + kBegin;
  shares_ = env.node_count > 1 && env.local_world_size > 1;
}

void WatchLink::begin(Clock::time_point now) {
  has_begun_ = true;
  const record::RunDir run{env_.run_directory};
  if (const auto text = base::read_file(run.watch_json(env_.attempt), /*limit_bytes=*/1 << 20))
    go_to(*text, now);
}

// Takes the place and its key from a watch.json that names another than the one we know.
void WatchLink::go_to(const std::string& watch_json, Clock::time_point now) {
  auto place = contract::parse_watch_place(watch_json);
  common::Key key{};
  if (!place || place->addresses.empty() || !common::from_hex(place->key, &key)) return;
  if (place_ && place->key == place_->key) return;
  disconnect();
  relay_.reset();
  orders_seen_ = 0;
  is_answered_ = true;
  next_relay_ = now;
  place_ = std::move(*place);
  key_ = key;
  next_address_ = 0;
  connect_deadline_ = now;
}

short WatchLink::events() const {
  return static_cast<short>(POLLIN | (socket_ && !connected_ ? POLLOUT : 0));
}

int WatchLink::milliseconds_to_next(Clock::time_point now) const {
  Clock::time_point next = welcome_ ? next_beat_ : connect_deadline_;
  if (welcome_ && relay_ && relay_->due()) next = std::min(next, *relay_->due());
  const auto left = std::chrono::ceil<milliseconds>(next - now);
  return static_cast<int>(std::clamp(left, milliseconds(0), kBeat).count());
}

WatchLink::Order WatchLink::service(short revents, Clock::time_point now,
                                    const std::function<contract::Beat()>& read_beat) {
  if (!has_begun_ && now >= connect_deadline_) begin(now);
  if (!place_) return Order::kNone;
  if (relay_) relay_->service(now);
  if (socket_ && !connected_ && (revents & (POLLOUT | POLLERR | POLLHUP)) != 0) {
    int failure = 0;
    socklen_t length = sizeof failure;
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &failure, &length);
    if (failure == 0) {
      connected_ = true;
      dead_since_.reset();  // its port is open: whoever has it lives, though another address may have refused
      next_beat_ = now;
    } else {
      note_death(failure);
      disconnect();
    }
  } else if (connected_ && revents != 0) {
    if (const Order order = read_lines(); order != Order::kNone) return order;
  }
  choose_way(now);
  if (!welcome_ && now >= connect_deadline_) connect_next(now);
  if (welcome_) send_words(now, read_beat);
  return check_lease(now);
}

// Returns when the supervisors of a node beat next, all at once; who speaks for the others waits for them.
WatchLink::Clock::time_point WatchLink::beat_after(Clock::time_point now) const {
  if (!shares_) return now + kBeat;
  const milliseconds of_node(std::hash<std::string>{}(env_.node_name) % static_cast<size_t>(kBeat.count()));
  const Clock::duration turn = (now.time_since_epoch() + of_node) % kBeat;
  return now - turn + kBeat + (relay_ ? NodeRelay::kGather : milliseconds(0));
}

void WatchLink::send_words(Clock::time_point now, const std::function<contract::Beat()>& read_beat) {
  const bool beats = now >= next_beat_;
  std::vector<contract::RankWord> words;
  if (relay_ && (beats || (relay_->due() && now >= *relay_->due()))) words = relay_->take_words();
  if (beats) {
    contract::Beat beat = read_beat();
    beat.sequence = ++sequence_;
    if (sent_.empty()) sent_first_ = sequence_;
    sent_.push_back(now);
    next_beat_ = beat_after(now);
    words.push_back({env_.global_rank, beat});
    if (relay_) relay_->on_sent(sequence_);
  }
  say(words);
}

void WatchLink::say(std::span<const contract::RankWord> words) {
  if (words.size() == 1 && words[0].global_rank == env_.global_rank)
    return send_sealed(words[0].beat ? to_line(*words[0].beat) : std::string(contract::kFarewellLine));
  while (!words.empty() && connected_) {
    const auto of_a_line = words.first(std::min(words.size(), kWordsOfALine));
    words = words.subspan(of_a_line.size());
    send_sealed(to_line(of_a_line));
  }
}

// Ends a connection where there is a better way to the conductor.
void WatchLink::choose_way(Clock::time_point now) {
  if (now - last_service_ > kOwnStall) last_answer_ = now;
  const bool is_unanswered = via_relay_ && now - last_answer_ >= kRelayPatience;
  const bool is_alone = shares_ && welcome_ && !via_relay_ && !relay_;
  if (!is_unanswered && !(is_alone && now >= next_relay_)) return;
  if (is_unanswered) next_relay_ = now + kRelayPause;
  disconnect();
  connect_deadline_ = now;
}

// Returns false when there is nobody whom to join, and we have to connect to the conductor.
bool WatchLink::join_relay(Clock::time_point now) {
  if (!shares_ || relay_ || now < next_relay_) return false;
  socket_ = NodeRelay::connect(key_, env_.node_name);
  if (socket_) {
    via_relay_ = connected_ = welcome_ = true;
    if (is_answered_) last_answer_ = now + (lease_start_ ? milliseconds(0) : kFirstPatience - kRelayPatience);
    is_answered_ = false;
    next_beat_ = now;
    send_line(NodeRelay::greeting(key_, {env_.global_rank, env_.node_name}));
    return true;
  }
  if (errno == ECONNREFUSED)
    relay_ = NodeRelay::open(key_, env_.node_name, 2 * static_cast<size_t>(env_.local_world_size) + 8);
  if (!relay_ && (errno == EADDRINUSE || errno == EAGAIN)) {  // it has the name and does not listen yet
    connect_deadline_ = now + kRelayBegins;
    return true;
  }
  if (!relay_) next_relay_ = now + kRelayPause;
  return false;
}

void WatchLink::connect_next(Clock::time_point now) {
  disconnect();
  connect_deadline_ = now + kConnectTime;
  if (join_relay(now)) return;
  const std::string& text = place_->addresses[next_address_++ % place_->addresses.size()];
  const auto address = parse_address(text, place_->port);
  if (!address) return;
  socket_ =
      base::UniqueFd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) return;
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address->storage), address->length) != 0 &&
      errno != EINPROGRESS) {
    note_death(errno);
    disconnect();
  }
}

// Only a closed port says so: a machine that does not answer may be cut off, and a firewall refuses one that lives from the
// first time on.
void WatchLink::note_death(int failure) {
  const bool could_be_reached = was_heard_ || place_->addresses.front().starts_with("127.");
  if (failure == ECONNREFUSED && could_be_reached && !dead_since_) dead_since_ = Clock::now();
}

void WatchLink::disconnect() {
  if (via_relay_) {  // who spoke for us has ended, or will not do it; nobody is missed before the next beat
    connect_deadline_ = next_beat_;
    const auto now = Clock::now();
    if (!is_answered_ && now - last_answer_ >= kRelayPatience) next_relay_ = now + kRelayPause;
  }
  socket_.reset();
  connected_ = welcome_ = via_relay_ = false;
  orders_here_ = 0;
  if (relay_) relay_->on_disconnected();
  lines_.reset();
  received_.clear();
  sent_.clear();
}

// A line is far smaller than a socket's buffer: what does not fit at once would not be read in time either.
void WatchLink::send_line(const std::string& line) {
  const std::string bytes = line + "\n";
  const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(bytes.size()) || sent_.size() > kMostUnanswered) disconnect();
}

void WatchLink::send_sealed(std::string_view text) {
  send_line(via_relay_ ? std::string(text) : lines_->seal(text));
}

WatchLink::Order WatchLink::read_lines() {
  std::array<char, 4096> chunk;
  signal_ = 0;
  while (connected_) {
    const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      // A conductor that lives does not hang up on one whom it knows. Another supervisor may have ended.
      if (welcome_ && !via_relay_) note_death(ECONNREFUSED);
      disconnect();
      break;
    }
    received_.append(chunk.data(), got);
    for (size_t end = 0; (end = received_.find('\n')) != std::string::npos;) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      if (const Order order = on_line(line); order != Order::kNone) return order;
      if (!connected_) break;
    }
    if (received_.size() > contract::kLongestLine) disconnect();
  }
  return signal_ > 0 ? Order::kSignal : Order::kNone;
}

WatchLink::Order WatchLink::on_line(const std::string& line) {
  constexpr std::string_view kAck = "ack ";
  if (!via_relay_ && !lines_) {
    on_opening(line);
    return Order::kNone;
  }
  const auto unsealed = via_relay_ ? line : lines_->unseal(line);
  if (!unsealed) {  // whoever it is, it does not hold the key
    disconnect();
    return Order::kNone;
  }
  const std::string_view text = *unsealed;
  if (text == contract::kWelcomeLine) {
    welcome_ = was_heard_ = true;
    dead_since_.reset();
  } else if (text.starts_with(contract::kKillOrder) || text.starts_with(contract::kSignalOrder)) {
    return on_order(text);
  } else if (text.starts_with(kAck)) {
    on_ack(text.substr(kAck.size()));
  }
  return Order::kNone;
}

WatchLink::Order WatchLink::on_order(std::string_view text) {
  const size_t number = orders_here_++;
  if (relay_ && number >= relay_->orders()) relay_->pass_on(text);
  if (number < orders_seen_) return Order::kNone;  // it came by another connection
  orders_seen_ = orders_here_;
  if (text.starts_with(contract::kKillOrder)) {
    reason_ = text.substr(contract::kKillOrder.size());
    return Order::kKill;
  }
  const std::string_view signal = text.substr(contract::kSignalOrder.size());
  std::from_chars(signal.data(), signal.data() + signal.size(), signal_);
  return Order::kNone;
}

void WatchLink::on_opening(const std::string& line) {
  const auto nonce = contract::random_key();
  if (!nonce) return disconnect();
  lines_.emplace(contract::SealedLines::Side::kClient, key_, *nonce);
  if (!lines_->take_opening(line)) return disconnect();
  const std::string opening = lines_->opening();
  send_line(opening + "\n" + lines_->seal(to_line(contract::Hello{env_.global_rank, env_.node_name})));
}

void WatchLink::on_ack(std::string_view number) {
  uint64_t sequence = 0;
  std::from_chars(number.data(), number.data() + number.size(), sequence);
  if (sequence < sent_first_ || sequence - sent_first_ >= sent_.size()) return;
  const auto passed = static_cast<std::ptrdiff_t>(sequence - sent_first_);
  lease_start_ = sent_[passed];
  sent_.erase(sent_.begin(), sent_.begin() + passed + 1);
  sent_first_ = sequence + 1;
  last_answer_ = Clock::now();
  is_answered_ = was_heard_ = true;
  dead_since_.reset();
  if (relay_) relay_->on_acknowledged(sequence);
}

WatchLink::Order WatchLink::check_lease(Clock::time_point now) {
  const bool was_asleep = now - last_service_ > kOwnStall;
  last_service_ = now;
  const std::chrono::duration<double> lease(place_->lease_seconds);
  // A conductor that never answered is silent once it is dead: until then it may not be reached from here.
  const auto silent_since = lease_start_ ? lease_start_ : dead_since_;
  if (!silent_since || now - *silent_since < lease) {
    look_.reset();
    next_look_ = now;
    return Order::kNone;
  }
  const auto patience = std::chrono::duration_cast<Clock::duration>(std::max(lease / 3, kLookTime));
  if (!look_ && now >= next_look_) {
    look_ = EpochLook::start(record::RunDir{env_.run_directory}, env_.attempt);
    next_look_ = now + kNextLook;
    look_deadline_ = now + patience;
  }
  if (was_asleep) look_deadline_ = now + patience;
  if (!look_) return Order::kNone;  // nobody was told yet, or no process could be started
  const auto answer = look_->answer();
  const bool waits = conductor_timeout_.count() > 0;
  const Clock::duration alone = waits ? Clock::duration(conductor_timeout_) : Clock::duration(kDeadTime);
  const bool is_abandoned = dead_since_ && now - *dead_since_ >= alone;
  if (answer == EpochLook::Answer::kOurs && !is_abandoned) {
    const std::string place = look_->text();
    look_.reset();
    go_to(place, now);
  }
  if (answer == EpochLook::Answer::kOurs && is_abandoned) {
    reason_ = waits ? fmt::format("the conductor is dead, and nobody has taken the run over within {} s",
                                  conductor_timeout_.count())
                    : std::string("the conductor is dead, and the job's ranks end with it");
    return Order::kFence;
  }
  // A machine with too much to do is not cut off.
  if (answer == EpochLook::Answer::kNone && now >= look_deadline_ && look_->wants_cpu())
    look_deadline_ = now + patience;
  if (answer == EpochLook::Answer::kOurs || (answer == EpochLook::Answer::kNone && now < look_deadline_))
    return Order::kNone;
  reason_ = fmt::format(
      "no word from the conductor for {:.1f} s, and {}",
      std::chrono::duration<double>(now - *silent_since).count(),
      answer == EpochLook::Answer::kTaken
          ? "this attempt's work was given to a later one"
          : fmt::format(
                "the run's epoch cannot be read ({}): this node may be cut off and its work "
                "given to others",
                answer == EpochLook::Answer::kNone ? "its file server does not answer" : look_->text()));
  return Order::kFence;
}

void WatchLink::say_farewell() {
  if (!place_) return;
  const auto now = Clock::now();
  if (!connected_ && lease_start_) (void)join_relay(now);
  std::vector<contract::RankWord> words;
  if (relay_) {
    relay_->service(now);
    words = relay_->take_words();
  }
  words.push_back({env_.global_rank, std::nullopt});
  if (lines_ || via_relay_) say(words);
  relay_.reset();  // another supervisor takes its place at once
}

}  // namespace shardrun::rank
