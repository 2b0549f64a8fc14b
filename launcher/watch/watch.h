// Watch: listens for the heartbeats of an attempt's ranks and raises the alarm (rules.h).
//
// Effect: opens a TCP listener and writes attempt_<n>/watch.json (0600), which tells the supervisors where it is
// and holds the key by which they prove that they belong here. On an alarm every connected supervisor is told to kill
// its program, at once and without Slurm's help, and alarm_fd() becomes readable. A straggler, and ranks that nobody
// hears, are named on stderr once. Whoever proves the key and asks to look is told what is known of each rank.
//
// What came is read and answered in turns at least 20 ms apart, orders aside: ten thousand ranks then take a fifth of a CPU,
// where a turn for each beat took all of one. A rank that falls silent is sent a line; when its machine acknowledges that, the
// rules know that its node is there.
//
// A stranger is a connection that proves nothing within kHelloSeconds, or says what the key does not bear out; not one that
// hangs up before it, as the supervisor of a program that ends at once does. It is closed and counted. At most kMostUnproven
// connections beside one for each rank may be without proof: when there are more, the oldest of them is closed, so that
// strangers can neither keep a rank out nor use up descriptors.
//
// Thread rule: start, raised, stragglers, the orders and stop from one thread; a thread of its own serves the connections and
// hands its findings over through a mutex. Block the stop signals before start.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "launcher/watch/rules.h"
#include "runtime/base/io.h"
#include "runtime/base/result.h"
#include "runtime/contract/sealed_lines.h"

namespace shardrun::launcher {

inline constexpr double kHelloSeconds = 2.0;
inline constexpr size_t kMostUnproven = 64;

struct WatchOptions {
  WatchPolicy policy;
  std::string place_path;               // path of watch.json, which is replaced
  std::vector<std::string> rank_nodes;  // node of each global rank
  bool this_machine_only = false;       // listen on loopback
  // Returns the ranks of some nodes that have left an account of their end: they were too short to be heard, or who spoke for
  // them ended with their last words. May be empty. Is called in a thread of its own, one call at a time.
  std::function<std::set<int>(const std::set<std::string>& nodes)> ended{};
};

class Watch {
 public:
  // kIo when no listener can be opened or the file cannot be written.
  static base::Result<std::unique_ptr<Watch>> start(WatchOptions options);
  Watch(const Watch&) = delete;
  ~Watch();

  // Returns an eventfd that is readable from the moment of the alarm on.
  int alarm_fd() const { return alarm_event_.get(); }
  struct Raised {
    Alarm alarm;
    double detected = 0.0;       // Unix seconds
    double after_seconds = 0.0;  // since the last sign of life or move
  };
  std::optional<Raised> raised() const;
  // Returns all stragglers found so far.
  std::vector<Straggler> stragglers() const;
  struct Strangers {
    int64_t count = 0;
    std::string newest;  // address and port
  };
  // Returns how many connections were refused so far, and where the newest came from.
  Strangers strangers() const;
  // Tells every supervisor, also one that connects later, to send its program a signal, or to kill it.
  void order_signal(int signal);
  void order_kill(const std::string& reason);
  // Raises no more alarms and joins the thread. The destructor does the same.
  void stop();

 private:
  struct Peer;
  using Peers = std::list<Peer>;
  struct Peer {
    base::UniqueFd socket;
    std::string from;  // address and port
    contract::SealedLines lines;
    bool proven = false;
    int global_rank = -1;            // -1 until its hello, and of a peer that looks
    bool speaks_for_others = false;  // of its node
    double accepted = 0.0;
    std::string received;
    std::string to_send;    // for a peer that looks; the connection ends with it
    bool hung_up = false;   // it ended the connection itself
    size_t ordered = 0;     // how many of our orders it was sent
    double answered = 0.0;  // when a beat was last acknowledged
    double asked = 0.0;     // when it was last asked for a sign of its machine
    Peers::iterator place{};
  };
  Watch(WatchOptions options, base::UniqueFd listener, base::UniqueFd alarm_event, base::UniqueFd wake_event,
        base::UniqueFd news);
  size_t most_unproven() const { return options_.rank_nodes.size() + kMostUnproven; }

  void serve();
  bool gather(double last_turn);
  void hear_peers(double now);
  void hear(Peer& peer, double now);
  void drop_late(double now);
  void drop(Peer& peer);
  void note(const Peer& peer, uint32_t events) const;
  void accept_peers(double now);
  bool read_peer(Peer& peer, double now);
  static bool send_more(Peer& peer);
  bool on_line(Peer& peer, const std::string& line, double now);
  bool on_first_line(Peer& peer, const std::string& text, double now);
  bool on_words(Peer& peer, std::span<const contract::RankWord> words, double now);
  std::string describe_ranks(contract::SealedLines& lines, double now) const;
  void note_stranger(const Peer& peer);
  bool drop_oldest_unproven();
  void ask_silent(double now);
  void look_for_ends(double now);
  void judge(double now);
  void tell_unheard(const std::vector<int>& ranks) const;
  void order(std::string line);
  void send_orders();

  WatchOptions options_;
  contract::WatchPlace place_;
  common::Key key_{};
  base::UniqueFd listener_, alarm_event_, wake_event_, news_;
  WatchRules rules_;  // owned by the thread
  Peers visitors_,
      supervisors_;  // owned by the thread: who is no rank, the oldest first; and supervisors of ranks
  double next_judgement_ = 0.0;
  double next_look_for_ends_ = 0.0, ends_began_ = 0.0;
  std::future<std::set<int>> ends_;  // what the look of then finds; invalid: nobody looks
  mutable std::mutex mutex_;         // guards the five below
  bool stopping_ = false;
  std::vector<std::string> orders_;  // only grows
  std::optional<Raised> raised_;
  std::vector<Straggler> stragglers_;
  Strangers strangers_;
  std::thread thread_;
};

}  // namespace shardrun::launcher
