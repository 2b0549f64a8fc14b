// WatchLink: a supervisor's connection to the conductor, for its heartbeats and for what the conductor orders.
//
// Where several nodes have several ranks each, one supervisor of a node speaks for all (node_relay.h): the link of every other
// leads to that one, which passes on in both directions. When it ends, the link of another takes its place. When nothing is
// acknowledged by way of it for kRelayPatience, because it is stopped or cannot reach the conductor, a link goes to the
// conductor itself, and comes back after kRelayPause. Supervisors of a node beat together, so that their words are one line.
//
// Connects to the addresses of attempt_<n>/watch.json in turn, again and again, without ever blocking. What answers there
// must prove that it is the conductor before a beat is sent. Once the conductor has answered, the link holds a lease: when
// lease_seconds have passed since the last beat that the conductor acknowledged, the conductor may be stopped or gone, or
// this node may be cut off and its work given to another. The run's epoch tells, and it is looked at again and again: as
// long as it is our attempt the program runs on. When it is another's, or cannot be read in time, the order is kFence
// (docs/decisions/0051). With the epoch the link learns where the attempt's conductor listens now, which may be another one
// that has taken the run over (docs/decisions/0080). A conductor is known to have died when its port is closed; where it has a
// time limit, the order is kFence when nobody has taken the run over until then. Nothing here fails: a link that cannot be made
// costs the supervision, never the job.
//
// Thread rule: thread-compatible.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/io.h"
#include "runtime/contract/heartbeat.h"
#include "runtime/contract/rank_env.h"
#include "runtime/contract/sealed_lines.h"
#include "runtime/rank/epoch_look.h"
#include "runtime/rank/node_relay.h"

namespace shardrun::rank {

class WatchLink {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Order { kNone, kSignal, kKill, kFence };

  // The link begins 0.1 s later; without a watch.json in the run directory by then it does nothing. `conductor_timeout`: how
  // long a conductor may be dead; 0: for ever.
  WatchLink(const contract::RankEnv& env, std::chrono::seconds conductor_timeout);

  bool active() const { return place_.has_value() || !has_begun_; }
  // Whether the conductor may have heard of us: who has not begun is missed by nobody.
  bool has_begun() const { return has_begun_; }
  // What poll() needs; -1 and 0 while there is no connection.
  int fd() const { return socket_.get(); }
  short events() const;
  // For poll(), too, to be read: what the supervisors say for whom we speak; -1: there is none.
  int relay_fd() const { return relay_ ? relay_->fd() : -1; }
  int milliseconds_to_next(Clock::time_point now) const;

  // Call it when fd() or relay_fd() has events and whenever milliseconds_to_next() has passed. `read_beat` is called when a beat
  // is due. kKill and kFence are final: reason() says why, in words for the log. kSignal: send the program signal().
  Order service(short revents, Clock::time_point now, const std::function<contract::Beat()>& read_beat);
  const std::string& reason() const { return reason_; }
  int signal() const { return signal_; }
  // Says that the program is gone and no more beats will come. Tries once, does not wait.
  void say_farewell();

 private:
  void begin(Clock::time_point now);
  void connect_next(Clock::time_point now);
  bool join_relay(Clock::time_point now);
  void choose_way(Clock::time_point now);
  void disconnect();
  Clock::time_point beat_after(Clock::time_point now) const;
  void send_words(Clock::time_point now, const std::function<contract::Beat()>& read_beat);
  void say(std::span<const contract::RankWord> words);
  void send_line(const std::string& line);
  void send_sealed(std::string_view text);
  Order read_lines();
  Order on_line(const std::string& line);
  Order on_order(std::string_view text);
  void on_opening(const std::string& line);
  void on_ack(std::string_view number);
  void note_death(int failure);
  void go_to(const std::string& watch_json, Clock::time_point now);
  Order check_lease(Clock::time_point now);

  contract::RankEnv env_;
  std::chrono::seconds conductor_timeout_;
  bool has_begun_ = false;
  std::optional<contract::WatchPlace> place_;
  base::UniqueFd socket_;
  size_t next_address_ = 0;
  bool connected_ = false, welcome_ = false;    // of the connection
  bool was_heard_ = false;                      // on any
  std::optional<contract::SealedLines> lines_;  // of the connection
  common::Key key_{};
  bool shares_ = false;     // a connection with the other supervisors of the node
  bool via_relay_ = false;  // of the connection: it leads to another supervisor
  std::optional<NodeRelay> relay_;
  Clock::time_point next_relay_;  // when another may be asked to speak for us
  // When the conductor last acknowledged something, or when a connection began after that; and whether it has since.
  Clock::time_point last_answer_;
  bool is_answered_ = true;
  // How many orders came, by this connection and by any: each connection begins with all that there were.
  size_t orders_here_ = 0, orders_seen_ = 0;
  std::string received_, reason_;
  uint64_t sequence_ = 0;
  Clock::time_point next_beat_, connect_deadline_, last_service_;
  // The time when the newest acknowledged beat was sent, and the beats that are not acknowledged.
  std::optional<Clock::time_point> lease_start_;
  std::optional<Clock::time_point> dead_since_;  // its port is closed
  int signal_ = 0;
  std::optional<EpochLook> look_;  // since the lease ended
  Clock::time_point next_look_, look_deadline_;
  uint64_t sent_first_ = 0;
  std::vector<Clock::time_point> sent_;  // times of the beats sent_first_, sent_first_ + 1, …
};

}  // namespace shardrun::rank
