#include "launcher/watch/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/median.h"

namespace shardrun::launcher {
namespace {

using contract::Beat;
using contract::RankPhase;

constexpr size_t kStepSamples = 256;
constexpr size_t kFewestSamples = 3;
constexpr double kGapSeconds = 30.0;
// A supervisor is blamed for a silence only when it is so many times as long as those that others came back from.
constexpr double kGapMargin = 3.0;
constexpr int64_t kFewestStepsInWindow = 3;

std::string who(const RankWatch& rank) {
  return fmt::format("rank {} on node {}", rank.global_rank, rank.node);
}

Alarm hang(const RankWatch& culprit, double since, const std::string& what) {
  return {"hang", culprit.node, culprit.global_rank, fmt::format("{} {}", who(culprit), what), since};
}

double p99(const std::deque<double>& samples) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const auto nearest = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(1, nearest) - 1];
}

bool has_moved(const Beat& before, const Beat& now) {
  return now.moves != before.moves || now.phase != before.phase;
}

std::string at_step(const RankWatch& rank) {
  return rank.beat.phase == RankPhase::kStarting ? std::string("before its first step")
                                                 : fmt::format("after step {}", rank.beat.step);
}

}  // namespace

WatchRules::WatchRules(WatchPolicy policy, std::vector<RankWatch> ranks)
    : policy_(std::move(policy)), ranks_(std::move(ranks)), windows_(ranks_.size()) {
  std::map<std::string, size_t> numbers;
  for (const RankWatch& rank : ranks_) {
    const auto [node, first] = numbers.emplace(rank.node, nodes_.size());
    if (first) nodes_.push_back(rank.node);
    node_of_.push_back(node->second);
  }
}

void WatchRules::on_beat(int global_rank, const Beat& beat, double now) {
  RankWatch& rank = ranks_[global_rank];
  const bool first = !rank.heard;
  const bool moved = first || has_moved(rank.beat, beat);
  if (!policy_.trainer) {
    rank.last_moved = now - static_cast<double>(beat.quiet_milliseconds) * 1e-3;
  } else if (moved) {
    rank.last_moved = now;
    rank.storage_seconds = 0.0;
  } else if (rank.beat.state == 'D') {
    rank.storage_seconds += now - rank.last_heard;
  }
  // A rank that is stopped and continued all the time, as by a CPU limiter, is slow, not stopped.
  if (beat.state != 'T' || moved) rank.stopped_since.reset();
  if (beat.state == 'T' && !rank.stopped_since) rank.stopped_since = now;
  if (now - gaps_begin_ > kGapSeconds) {
    gap_before_ = now - gaps_begin_ > 2 * kGapSeconds ? 0.0 : longest_gap_;
    longest_gap_ = 0.0;
    gaps_begin_ = now;
  }
  if (rank.heard) longest_gap_ = std::max(longest_gap_, now - rank.last_heard);
  rank.heard = true;
  rank.last_heard = now;
  rank.beat = beat;
  if (global_rank == 0 && beat.step > last_sampled_step_) {
    last_sampled_step_ = beat.step;
    step_seconds_.push_back(static_cast<double>(beat.step_microseconds) * 1e-6);
    if (step_seconds_.size() > kStepSamples) step_seconds_.pop_front();
    step_seconds_p99_ = p99(step_seconds_);
  }
}

void WatchRules::on_farewell(int global_rank) {
  ranks_[global_rank].left = true;
}

void WatchRules::on_acknowledged(int global_rank, double when) {
  RankWatch& rank = ranks_[global_rank];
  rank.last_acknowledged = std::max(rank.last_acknowledged, when);
}

void WatchRules::on_closed(int global_rank, double now) {
  const auto closed = static_cast<size_t>(global_rank);
  size_t rank = closed;
  while (rank > 0 && node_of_[rank - 1] == node_of_[closed]) --rank;
  for (; rank < ranks_.size() && node_of_[rank] == node_of_[closed]; ++rank)
    on_acknowledged(static_cast<int>(rank), now + (kStarvedShare - 1.0) * policy_.node_timeout_seconds);
}

void WatchRules::forgive(double seconds) {
  for (RankWatch& rank : ranks_) {
    rank.last_heard += seconds;
    rank.last_moved += seconds;
    rank.last_acknowledged += seconds;
    if (rank.stopped_since) *rank.stopped_since += seconds;
  }
  if (first_look_) *first_look_ += seconds;
}

// Returns how long nothing may move in this phase.
double WatchRules::patience_seconds(const RankWatch& rank) const {
  if (policy_.hang_timeout_seconds && *policy_.hang_timeout_seconds == 0.0) {
    return std::numeric_limits<double>::infinity();
  }
  const bool stepping = rank.beat.phase == RankPhase::kStepping && step_seconds_.size() >= kFewestSamples;
  double patience = policy_.slow_phase_seconds + kOwnWordsSeconds;
  if (policy_.hang_timeout_seconds) {
    patience = *policy_.hang_timeout_seconds;
  } else if (stepping) {
    patience = std::max(kFloorSeconds, 2.5 * step_seconds_p99_);
  }
  if (rank.beat.state == 'D') return std::max(patience, kStorageSeconds);
  return patience + std::min(rank.storage_seconds, kStorageSeconds);
}

std::optional<Alarm> WatchRules::find_alarm(double now) const {
  if (auto alarm = find_unheard(now)) return alarm;
  if (auto alarm = find_silence(now)) return alarm;
  if (is_anybody_silent(now, kSilentBeats * contract::kBeatSeconds)) return std::nullopt;
  if (!policy_.trainer) return find_quiet_command(now);
  if (auto alarm = find_stopped(now)) return alarm;
  return find_stuck(now);
}

std::optional<Alarm> WatchRules::find_unheard(double now) const {
  if (!first_look_ || (policy_.hang_timeout_seconds == 0.0 && !policy_.return_seconds)) return std::nullopt;
  const double patience = policy_.return_seconds ? *policy_.return_seconds
                          : policy_.hang_timeout_seconds
                              ? std::max(*policy_.hang_timeout_seconds, kStartFloorSeconds)
                              : policy_.slow_phase_seconds;
  if (now - *first_look_ < patience) return std::nullopt;
  std::vector<bool> is_heard(nodes_.size());
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (ranks_[i].heard) is_heard[node_of_[i]] = true;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const RankWatch& rank = ranks_[i];
    if (rank.heard || rank.left || (!policy_.all_reach_us && !is_heard[node_of_[i]])) continue;
    if (policy_.return_seconds)
      return hang(rank, *first_look_,
                  fmt::format("is gone: nothing was heard of it for {:.1f} s since the run was taken over",
                              now - *first_look_));
    return hang(
        rank, *first_look_,
        fmt::format(
            "hangs before its first sign of life: nothing was heard of it for {:.1f} s since the start",
            now - *first_look_));
  }
  return std::nullopt;
}

std::vector<WatchRules::NodeSign> WatchRules::node_signs() const {
  std::vector<NodeSign> signs(nodes_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!is_watched(ranks_[i])) continue;
    NodeSign& sign = signs[node_of_[i]];
    ++sign.watched;
    sign.last_heard = std::max(sign.last_heard, ranks_[i].last_heard);
    sign.last_acknowledged = std::max(sign.last_acknowledged, ranks_[i].last_acknowledged);
  }
  return signs;
}

// How long a supervisor may be silent while others of its node speak. They get the time to fall silent, too, before one of a
// node's ranks is blamed; and where supervisors are short of CPU, silences that others came back from say how long it takes.
double WatchRules::silence_allowed() const {
  return std::max(policy_.node_timeout_seconds + 2 * contract::kBeatSeconds,
                  kGapMargin * std::max(longest_gap_, gap_before_));
}

std::optional<Alarm> WatchRules::find_silence(double now) const {
  const auto is_silent = [&](const RankWatch& rank) {
    return is_watched(rank) && now - rank.last_heard >= policy_.node_timeout_seconds;
  };
  if (!is_anybody_silent(now, policy_.node_timeout_seconds)) return std::nullopt;
  const std::vector<NodeSign> signs = node_signs();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const RankWatch& rank = ranks_[i];
    if (!is_silent(rank)) continue;
    const size_t node = node_of_[i];
    const double quiet = now - signs[node].last_heard;
    if (quiet < policy_.node_timeout_seconds) {
      if (now - rank.last_heard < silence_allowed()) continue;
      return hang(rank, rank.last_heard,
                  fmt::format("hangs: its supervisor has been silent for {:.1f} s", now - rank.last_heard));
    }
    // An acknowledgement may come a little after the beat that it is for.
    const double unacknowledged = now - signs[node].last_acknowledged;
    const bool is_there = unacknowledged < policy_.node_timeout_seconds - contract::kBeatSeconds;
    if (is_there && quiet < kStarvedShare * policy_.node_timeout_seconds) continue;
    const std::vector<std::string> beside = silent_beside(node, signs, now);
    if (auto alarm = find_cut_off(beside, signs, now)) return alarm;
    const bool is_half = 2 * (beside.size() + 1) >= watched_nodes(signs);
    Alarm alarm{"node_lost",
                rank.node,
                {},
                fmt::format("node {} is lost: no sign of life for {:.1f} s", rank.node, quiet),
                signs[node].last_heard,
                is_half ? std::vector<std::string>{} : beside};
    if (!alarm.also_lost.empty()) alarm.line += fmt::format(", nor of {}", fmt::join(alarm.also_lost, ", "));
    return alarm;
  }
  return std::nullopt;
}

// Returns the nodes that are as silent as the lost one, or nearly so.
std::vector<std::string> WatchRules::silent_beside(size_t lost, const std::vector<NodeSign>& signs,
                                                   double now) const {
  std::vector<std::string> silent;
  for (size_t node = 0; node < signs.size(); ++node) {
    const NodeSign& sign = signs[node];
    const double last_sign = std::max(sign.last_heard, sign.last_acknowledged);
    if (node != lost && sign.watched > 0 && now - last_sign >= kLeaseShare * policy_.node_timeout_seconds)
      silent.push_back(nodes_[node]);
  }
  std::sort(silent.begin(), silent.end());
  return silent;
}

// Several nodes at once, and at most one is heard, which as a rule is our own: no node is to blame, and none is left out later.
std::optional<Alarm> WatchRules::find_cut_off(const std::vector<std::string>& beside,
                                              const std::vector<NodeSign>& signs, double now) const {
  if (beside.empty() || beside.size() + 2 < watched_nodes(signs)) return std::nullopt;
  std::string others;
  double last_heard = 0.0;
  for (size_t node = 0; node < signs.size(); ++node) {
    if (signs[node].watched == 0) continue;
    const bool is_heard = now - signs[node].last_heard < kLeaseShare * policy_.node_timeout_seconds;
    if (is_heard) others = " but " + nodes_[node];
    if (!is_heard) last_heard = std::max(last_heard, signs[node].last_heard);
  }
  return Alarm{"node_lost",
               "",
               {},
               fmt::format("the conductor hears no node{} for {:.1f} s: the link of its own machine, or the "
                           "network between the nodes",
                           others, now - last_heard),
               last_heard};
}

size_t WatchRules::watched_nodes(const std::vector<NodeSign>& signs) {
  return static_cast<size_t>(
      std::count_if(signs.begin(), signs.end(), [](const NodeSign& sign) { return sign.watched > 0; }));
}

bool WatchRules::is_anybody_silent(double now, double seconds) const {
  if (now - heard_since_ < seconds) return false;
  heard_since_ = now;
  for (const RankWatch& rank : ranks_)
    if (is_watched(rank)) heard_since_ = std::min(heard_since_, rank.last_heard);
  return now - heard_since_ >= seconds;
}

std::vector<int> WatchRules::silent(double now) const {
  std::vector<int> silent;
  if (!is_anybody_silent(now, kSilentBeats * contract::kBeatSeconds)) return silent;
  for (const RankWatch& rank : ranks_) {
    if (is_watched(rank) && now - rank.last_heard > kSilentBeats * contract::kBeatSeconds)
      silent.push_back(rank.global_rank);
  }
  return silent;
}

std::optional<Alarm> WatchRules::find_stopped(double now) const {
  for (const RankWatch& rank : ranks_) {
    if (!is_watched(rank) || !rank.stopped_since) continue;
    if (!std::isfinite(patience_seconds(rank)) || now - *rank.stopped_since < kStoppedSeconds) continue;
    return hang(rank, *rank.stopped_since,
                fmt::format("hangs {}: its process has been stopped (SIGSTOP) for {:.1f} s", at_step(rank),
                            now - *rank.stopped_since));
  }
  return std::nullopt;
}

std::optional<Alarm> WatchRules::find_stuck(double now) const {
  const RankWatch* fewest = nullptr;
  uint64_t most_entered = 0;
  bool all_still = true;
  double last_moved = 0.0;
  int still = 0, behind = 0;
  for (const RankWatch& rank : ranks_) {
    if (!is_watched(rank)) continue;
    if (now - rank.last_moved < patience_seconds(rank)) {
      all_still = false;
      continue;
    }
    const double stuck = now - rank.last_moved;
    if (!rank.beat.waiting) {
      const char* why = rank.beat.state == 'T'   ? ", stopped (SIGSTOP)"
                        : rank.beat.state == 'D' ? ", in uninterruptible sleep (a disk or a file server)"
                        : rank.beat.state == 'R' ? ", computing"
                                                 : "";
      return hang(rank, rank.last_moved,
                  fmt::format("hangs {}: it has not moved for {:.1f} s{}, while others wait for it",
                              at_step(rank), stuck, why));
    }
    ++still;
    last_moved = std::max(last_moved, rank.last_moved);
    most_entered = std::max(most_entered, rank.beat.entered);
    if (fewest == nullptr || rank.beat.entered < fewest->beat.entered) fewest = &rank;
  }
  if (fewest == nullptr || !all_still) return std::nullopt;
  for (const RankWatch& rank : ranks_) {
    behind += is_watched(rank) && rank.beat.entered == fewest->beat.entered ? 1 : 0;
  }
  if (fewest->beat.entered < most_entered && behind == 1) {
    return hang(*fewest, last_moved,
                fmt::format("hangs {}: it has entered {} collectives, others {}", at_step(*fewest),
                            fewest->beat.entered, most_entered));
  }
  return Alarm{"hang",
               "",
               {},
               fmt::format("all {} ranks wait for each other since {:.1f} s, {}: the network or the plugin",
                           still, now - last_moved, at_step(*fewest)),
               last_moved};
}

std::optional<Alarm> WatchRules::find_quiet_command(double now) const {
  const double patience = policy_.hang_timeout_seconds.value_or(0.0);
  if (patience == 0.0) return std::nullopt;
  const RankWatch* stopped = nullptr;
  double last_moved = 0.0;
  int watched = 0;
  for (const RankWatch& rank : ranks_) {
    if (!is_watched(rank)) continue;
    ++watched;
    last_moved = std::max(last_moved, rank.last_moved);
    if (rank.stopped_since && stopped == nullptr) stopped = &rank;
  }
  if (watched == 0 || now - last_moved < patience) return std::nullopt;
  if (stopped != nullptr) {
    return hang(*stopped, last_moved,
                fmt::format("hangs: its process is stopped (SIGSTOP), and no rank wrote a line for {:.1f} s",
                            now - last_moved));
  }
  return Alarm{"hang",
               "",
               {},
               fmt::format("no rank wrote a line or touched its heartbeat file for {:.1f} s (hang_timeout)",
                           now - last_moved),
               last_moved};
}

std::vector<int> WatchRules::unheard() const {
  std::vector<int> unheard;
  for (const RankWatch& rank : ranks_) {
    if (!rank.heard && !rank.left) unheard.push_back(rank.global_rank);
  }
  return unheard;
}

std::vector<int> WatchRules::take_unheard(double now) {
  if (!first_look_) first_look_ = now;
  if (looked_for_unheard_ || now - *first_look_ < kUnheardSeconds) return {};
  looked_for_unheard_ = true;
  return unheard();
}

std::vector<Straggler> WatchRules::take_stragglers(double now) {
  std::vector<Straggler> found;
  if (window_begin_ == 0.0) window_begin_ = now;
  if (!policy_.trainer || now - window_begin_ < kWindowSeconds) return found;
  window_begin_ = now;
  std::vector<double> busy(ranks_.size(), 0.0), all;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Beat& beat = ranks_[i].beat;
    const int64_t steps = beat.step - windows_[i].step;
    if (is_watched(ranks_[i]) && steps >= kFewestStepsInWindow && windows_[i].step > 0) {
      busy[i] = static_cast<double>(beat.busy_microseconds - windows_[i].busy_microseconds) * 1e-6 /
                static_cast<double>(steps);
      all.push_back(busy[i]);
    }
    windows_[i].step = beat.step;
    windows_[i].busy_microseconds = beat.busy_microseconds;
  }
  if (all.size() < 2) return found;
  const double median = base::lower_median(all);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Window& window = windows_[i];
    const bool slow = busy[i] > std::max(kStragglerMargin * median, median + kStragglerFloorSeconds);
    window.slow_windows = slow ? window.slow_windows + 1 : 0;
    if (window.slow_windows < kStragglerWindows || window.reported) continue;
    window.reported = true;
    found.push_back({ranks_[i].global_rank, ranks_[i].node, busy[i], median});
  }
  return found;
}

}  // namespace shardrun::launcher
