// Rules of the watch: decide from what the ranks' heartbeats say what is wrong, and whose fault it is.
//
//   a node is lost       none of its ranks has been heard for node_timeout; lost with it are others that have been
//                        silent for kLeaseShare of that, unless half of all nodes are: then the fault may be on our
//                        side. It is, and no node is named, when several are silent and at most one is heard.
//                        While its machine acknowledges what we send, its supervisors get no CPU: it is lost
//                        only after kStarvedShare of node_timeout (docs/decisions/0111)
//   a rank hangs         its process is stopped (SIGSTOP) for kStoppedSeconds; or only its supervisor is silent; or
//                        between two steps nothing moves although it waits for nobody
//   a rank hangs before its first beat
//                        its supervisor is not heard within hang_timeout (kStartFloorSeconds at least), or
//                        slow_phase_seconds, of the attempt's start, although it can reach us: all can, or another
//                        rank of its node does
//   nothing moves        all ranks wait in collectives: the culprits are those that have entered the fewest
//
// While a rank is silent, nobody is blamed for not moving: what was heard last is old, and others may be waiting
// for a node that is gone.
//
// "Nothing moves" may last this long: max(kFloorSeconds, 2.5 × the 99th percentile of the step seconds) for the
// trainer between its steps, so that detection takes at most max(5 s, 3 × p99). A slow step raises no alarm,
// because a step moves with each of its blocks. hang_timeout replaces this limit. Before the third step and while a
// checkpoint is waited for, the limit is slow_phase_seconds, which is the ranks' own in a collective, and
// kOwnWordsSeconds. A rank in uninterruptible sleep (a dead disk or file server, which a restart does not mend) has
// at least kStorageSeconds, and when it wakes, its limit begins anew. A command moves when it writes a line or touches
// its heartbeat file, and hangs only when hang_timeout is given and no rank has moved for that long: most programs
// write from one rank.
//
// A straggler is a rank that is busy kStragglerMargin times as long as the median rank in each step, for
// kStragglerWindows windows of kWindowSeconds one after the other.
//
// Thread rule: pure values and functions.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "runtime/contract/heartbeat.h"

namespace shardrun::launcher {

// A supervisor gives up its program after this share of the time after which its node is called lost.
inline constexpr double kLeaseShare = 0.75;
inline constexpr double kStarvedShare = 3.0;
inline constexpr double kFloorSeconds = 3.8;
inline constexpr double kStoppedSeconds = 3.5;
inline constexpr double kStartFloorSeconds = 30.0;  // a busy machine may take long to start many processes
inline constexpr double kStorageSeconds = 120.0;
inline constexpr double kOwnWordsSeconds = 10.0;  // who misses another rank knows best which, and says it
inline constexpr double kSilentBeats = 3.0;       // missing in a row
inline constexpr double kStragglerMargin = 1.1;
inline constexpr double kStragglerFloorSeconds = 0.002;  // less than this is noise, whatever the margin
inline constexpr double kWindowSeconds = 7.0;
inline constexpr int kStragglerWindows = 3;
inline constexpr double kUnheardSeconds = 60.0;  // from the first look on

struct WatchPolicy {
  bool trainer = false;
  double node_timeout_seconds = 4.0;
  std::optional<double> hang_timeout_seconds;  // 0: never
  double slow_phase_seconds = 300.0;
  // How long a rank may be silent at first, where ranks that were heard before are waited for; absent: as above.
  std::optional<double> return_seconds;
  // Whether every rank can reach us, as on one machine; elsewhere a rank may run unwatched because of a firewall.
  bool all_reach_us = false;
};

// What is known of one rank. Times are seconds of one monotonic clock.
struct RankWatch {
  int global_rank = 0;
  std::string node;
  bool heard = false;  // it is watched from its first beat on
  bool left = false;   // it said farewell
  double last_heard = 0.0, last_moved = 0.0;
  double last_acknowledged = 0.0;  // when its machine last acknowledged something, as far as we have asked
  double storage_seconds = 0.0;    // how long it has been seen in uninterruptible sleep since it last moved
  std::optional<double> stopped_since;
  contract::Beat beat;  // the newest
};

struct Alarm {
  std::string kind;                    // "hang" or "node_lost"
  std::string node;                    // "": nobody's in particular
  std::optional<int> global_rank;      // the culprit, where it is one rank
  std::string line;                    // one line, naming it
  double since = 0.0;                  // time of the last sign of life, or of the last move
  std::vector<std::string> also_lost;  // nodes that are lost with `node`
};

struct Straggler {
  int global_rank = 0;
  std::string node;
  double busy_seconds = 0.0, median_seconds = 0.0;  // for one step
};

// Keeps the ranks' state up to date and judges it.
class WatchRules {
 public:
  WatchRules(WatchPolicy policy, std::vector<RankWatch> ranks);

  void on_beat(int global_rank, const contract::Beat& beat, double now);
  void on_farewell(int global_rank);
  // Says when the machine of a rank last acknowledged what was sent to its supervisor.
  void on_acknowledged(int global_rank, double when);
  // Says that a connection by which a rank spoke for its node was closed. Its machine was there to do it, and whoever speaks next gets
  // the time of a supervisor without a CPU.
  void on_closed(int global_rank, double now);
  // Says that we did not look for `seconds`: silence in that time is nobody's fault.
  void forgive(double seconds);

  // Returns the first thing that is wrong.
  std::optional<Alarm> find_alarm(double now) const;
  // Returns the ranks that have newly become stragglers.
  std::vector<Straggler> take_stragglers(double now);
  // Returns the ranks that are neither heard nor left.
  std::vector<int> unheard() const;
  // Returns the watched ranks of which nothing was heard for kSilentBeats beats.
  std::vector<int> silent(double now) const;
  // Says whether nothing was heard of a watched rank for so long; costs next to nothing as long as all are heard.
  bool is_anybody_silent(double now, double seconds) const;
  // Returns, once, kUnheardSeconds after the first call, the ranks that were never heard and are watched by nobody.
  std::vector<int> take_unheard(double now);

  const std::vector<RankWatch>& ranks() const { return ranks_; }

 private:
  struct Window {
    int64_t step = 0, busy_microseconds = 0;  // at the beginning of the window
    int slow_windows = 0;
    bool reported = false;
  };
  // What was heard of one node: of the watched ranks there, and when last.
  struct NodeSign {
    int watched = 0;
    double last_heard = 0.0, last_acknowledged = 0.0;
  };
  std::vector<NodeSign> node_signs() const;
  std::optional<Alarm> find_unheard(double now) const;
  std::optional<Alarm> find_silence(double now) const;
  std::vector<std::string> silent_beside(size_t lost, const std::vector<NodeSign>& signs, double now) const;
  std::optional<Alarm> find_cut_off(const std::vector<std::string>& beside,
                                    const std::vector<NodeSign>& signs, double now) const;
  static size_t watched_nodes(const std::vector<NodeSign>& signs);
  std::optional<Alarm> find_stopped(double now) const;
  std::optional<Alarm> find_stuck(double now) const;
  std::optional<Alarm> find_quiet_command(double now) const;
  double silence_allowed() const;
  double patience_seconds(const RankWatch& rank) const;
  bool is_watched(const RankWatch& rank) const { return rank.heard && !rank.left; }

  WatchPolicy policy_;
  std::vector<RankWatch> ranks_;  // by global rank
  std::vector<Window> windows_;
  std::vector<std::string> nodes_;  // in the order of their first ranks
  std::vector<size_t> node_of_;     // by global rank, an index into nodes_
  double window_begin_ = 0.0;
  mutable double heard_since_ = 0.0;  // every watched rank was heard then or later
  std::optional<double> first_look_;
  bool looked_for_unheard_ = false;
  std::deque<double> step_seconds_;  // those of rank 0, the newest last
  double step_seconds_p99_ = 0.0;
  // The longest silences of ranks that spoke again: since gaps_begin_, and in the kGapSeconds before.
  double longest_gap_ = 0.0, gap_before_ = 0.0, gaps_begin_ = 0.0;
  int64_t last_sampled_step_ = 0;
};

}  // namespace shardrun::launcher
