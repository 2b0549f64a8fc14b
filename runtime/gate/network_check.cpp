#include "runtime/gate/network_check.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>

namespace shardrun::gate {
namespace {

using base::Result;
using comm::Communicator;
using comm::Pending;

constexpr int kClockRounds = 5;
constexpr int kFewestRounds = 4;  // the first of them warms up
constexpr int kMostRounds = 20;
constexpr double kEnoughSeconds = 0.02;  // of one all-reduce, to be timed
constexpr double kPatience = 0.3;        // seconds for the rounds, unless
constexpr double kLongPatience = 1.5;    // they are slower than what is usual
constexpr int kMostLooks = 3;            // at the pairs, before a node is said to stand out
constexpr size_t kFewestFloats = size_t{1} << 18, kMostFloats = size_t{1} << 24;
constexpr double kNever = std::numeric_limits<double>::infinity();

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<void> complete(Communicator& group, Result<Pending> started) {
  if (!started) return std::move(started).error();
  return group.wait(*started);
}

// Everyone's value, in the order of the group's ranks.
template <typename T>
Result<std::vector<T>> gather(Communicator& group, const T& mine) {
  std::vector<T> all(static_cast<size_t>(group.size()));
  RETURN_IF_ERROR(complete(
      group, group.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)))));
  return all;
}

// The best of some rounds, each as long as it took the slowest rank; the same on all ranks of the group. A best of
// `good_seconds` ends them; while it is not reached, they go on for longer.
Result<double> best_seconds(Communicator& group, std::span<float> buffer, double patience,
                            double good_seconds) {
  double best = kNever, spent = 0.0;
  for (int round = 0; round < kMostRounds; ++round) {
    if (round >= kFewestRounds && (best <= good_seconds || spent >= patience)) break;
    if (spent >= 2 * patience) break;
    RETURN_IF_ERROR(complete(group, group.barrier()));
    const auto begin = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(complete(group, group.all_reduce(buffer)));
    const auto took =
        gather(group, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    if (!took) return took.error();
    const double slowest = *std::max_element(took->begin(), took->end());
    best = std::min(best, slowest);
    spent += slowest;
  }
  return best;
}

// In bytes a second, and back.
double bandwidth(size_t floats, int ranks, double seconds) {
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(floats * sizeof(float)) / seconds;
}

class NetworkCheck {
 public:
  NetworkCheck(const NetworkOptions& options, comm::Meeting& meeting)
      : options_(options), meeting_(meeting) {}

  Result<NetworkResult> run() {
    auto world = meeting_.session.communicator(0);
    if (!world) return std::move(world).error();
    world_ = std::move(*world);
    RETURN_IF_ERROR(complete(*world_, world_->barrier()));
    RETURN_IF_ERROR(know_nodes());
    contract::Measurement& measured = result_.measured;
    measured.provider = meeting_.session.provider();
    measured.ranks = world_->size();
    result_.is_first = world_->rank() == 0;
    RETURN_IF_ERROR(compare_clocks());
    RETURN_IF_ERROR(measure_all());
    const double usual = options_.usual_bytes_per_second;
    const bool suspicious = usual <= 0.0 || measured.bytes_per_second < contract::kSlowShare * usual;
    if (suspicious && nodes_.size() > 2) RETURN_IF_ERROR(measure_pairs());
    return std::move(result_);
  }

 private:
  int node_of(int rank) const {  // index in nodes_
    const int node = meeting_.members[static_cast<size_t>(rank)] / options_.ranks_per_node;
    return static_cast<int>(std::find(nodes_.begin(), nodes_.end(), node) - nodes_.begin());
  }

  Result<void> know_nodes() {
    std::array<char, 256> name{};
    std::memcpy(name.data(), options_.node.data(), std::min(options_.node.size(), name.size() - 1));
    const auto names = gather(*world_, name);
    if (!names) return names.error();
    for (size_t rank = 0; rank < meeting_.members.size(); ++rank) {
      const int node = meeting_.members[rank] / options_.ranks_per_node;
      if (!nodes_.empty() && nodes_.back() == node) continue;
      nodes_.push_back(node);
      names_.emplace_back((*names)[rank].data());
    }
    return {};
  }

  Result<void> compare_clocks() {
    struct Reading {
      double before, between, after;
    };
    std::vector<contract::ClockOffset> clocks;
    for (const std::string& name : names_) clocks.push_back({name, -kNever, kNever});
    for (int round = 0; round < kClockRounds; ++round) {
      Reading mine{unix_now(), 0.0, 0.0};
      RETURN_IF_ERROR(complete(*world_, world_->barrier()));
      mine.between = unix_now();
      RETURN_IF_ERROR(complete(*world_, world_->barrier()));
      mine.after = unix_now();
      const auto readings = gather(*world_, mine);
      if (!readings) return readings.error();
      const Reading& first = readings->front();
      for (int rank = 0; rank < world_->size(); ++rank) {
        contract::ClockOffset& clock = clocks[static_cast<size_t>(node_of(rank))];
        const double reading = (*readings)[static_cast<size_t>(rank)].between;
        clock.low = std::max(clock.low, reading - first.after);
        clock.high = std::min(clock.high, reading - first.before);
      }
    }
    result_.measured.clocks = std::move(clocks);
    return {};
  }

  Result<void> measure_all() {
    if (world_->size() == 1) return {};
    const double usual = options_.usual_bytes_per_second;
    for (size_t floats = kFewestFloats;; floats *= 4) {
      buffer_.assign(floats, 0.0F);
      const double good = usual > 0.0 ? bandwidth(floats, world_->size(), contract::kSlowShare * usual) : 0.0;
      const auto seconds = best_seconds(*world_, buffer_, usual > 0.0 ? kLongPatience : kPatience, good);
      if (!seconds) return seconds.error();
      result_.measured.bytes = static_cast<int64_t>(floats * sizeof(float));
      result_.measured.bytes_per_second = bandwidth(floats, world_->size(), *seconds);
      if (*seconds >= kEnoughSeconds || floats >= kMostFloats) return {};
    }
  }

  // The communicator of the ranks of the nodes `edge` and the next one; made once.
  Result<Communicator*> pair(int edge) {
    if (const auto made = groups_.find(edge); made != groups_.end()) return made->second.get();
    const int next = (edge + 1) % static_cast<int>(nodes_.size());
    std::vector<uint32_t> ranks;
    for (int rank = 0; rank < world_->size(); ++rank) {
      if (node_of(rank) == edge || node_of(rank) == next) ranks.push_back(static_cast<uint32_t>(rank));
    }
    auto group = meeting_.session.communicator(1 + edge, ranks);
    if (!group) return std::move(group).error();
    return (groups_[edge] = std::move(*group)).get();
  }

  // Looks again while a node stands out, and believes the best: what is slow once may have been busy.
  Result<void> measure_pairs() {
    const size_t count = nodes_.size();
    std::vector<contract::PairBandwidth>& pairs = result_.measured.pairs;
    for (size_t edge = 0; edge < count; ++edge)
      pairs.push_back({names_[edge], names_[(edge + 1) % count], 0.0});
    for (int look = 0; look < kMostLooks; ++look) {
      const auto seen = look_at_pairs();
      if (!seen) return seen.error();
      for (int rank = 0; rank < world_->size(); ++rank) {
        double& best = pairs[static_cast<size_t>(node_of(rank))].bytes_per_second;
        best = std::max(best, (*seen)[static_cast<size_t>(rank)]);
      }
      if (!contract::any_stands_out(pairs, contract::kSlowShare)) break;
    }
    return {};
  }

  // For each rank, the bandwidth of its node with the next one in the ring.
  Result<std::vector<double>> look_at_pairs() {
    const auto count = static_cast<int>(nodes_.size());
    const int mine = node_of(world_->rank());
    double forward = 0.0;
    const std::array<int, 2> edges = {mine, (mine + count - 1) % count};
    for (int round = 0; round < 2 + count % 2; ++round) {
      RETURN_IF_ERROR(complete(*world_, world_->barrier()));
      for (const int edge : edges) {
        if (pair_round(edge, count) != round) continue;
        auto group = pair(edge);
        if (!group) return std::move(group).error();
        const auto seconds = best_seconds(**group, buffer_, kPatience, 0.0);
        if (!seconds) return seconds.error();
        if (edge == mine) forward = bandwidth(buffer_.size(), (*group)->size(), *seconds);
      }
    }
    return gather(*world_, forward);
  }

  const NetworkOptions& options_;
  comm::Meeting& meeting_;
  std::unique_ptr<Communicator> world_;
  std::map<int, std::unique_ptr<Communicator>> groups_;  // of pairs
  std::vector<int> nodes_;                               // numbers of those that take part, ascending
  std::vector<std::string> names_;                       // theirs
  std::vector<float> buffer_;
  NetworkResult result_;
};

}  // namespace

int pair_round(int edge, int nodes) {
  return nodes % 2 == 1 && edge == nodes - 1 ? 2 : edge % 2;
}

Result<NetworkResult> check_network(const NetworkOptions& options) {
  auto meeting = comm::meet(options.world);
  if (!meeting) return std::move(meeting).error();
  return NetworkCheck(options, *meeting).run();
}

}  // namespace shardrun::gate
