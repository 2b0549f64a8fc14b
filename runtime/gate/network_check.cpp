#include "runtime/gate/network_check.h"
#include "runtime/base/unix_time.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <span>

namespace shardrun::gate {
namespace {

using base::Result;
using comm::Communicator;

constexpr size_t kRoundsOfBatch = 2;
constexpr int kMostBatches = 10;
constexpr double kEnoughSeconds = 0.02;  // seconds of one all-reduce that are enough to time it
constexpr double kPatience = 0.3;        // seconds for the rounds, unless
constexpr double kLongPatience = 1.5;    // they are slower than what is usual
// The pairs are measured at most this many times before a node is said to stand out.
constexpr int kMostLooks = 3;
constexpr size_t kFewestFloats = size_t{1} << 18, kMostFloats = size_t{1} << 24;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Returns the best of some rounds, each as long as it took the slowest rank; the same on all ranks of the group. A
// best within `good_seconds` ends the rounds; while it is not reached, they go on for longer.
Result<double> best_seconds(Communicator& group, std::span<float> buffer, double patience,
                            double good_seconds) {
  double best = kNever, spent = 0.0;
  for (int batch = 0; batch < kMostBatches; ++batch) {
    std::array<double, kRoundsOfBatch> mine{};
    for (double& seconds : mine) {
      const auto begin = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(comm::complete(group, group.all_reduce(buffer)));
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    ASSIGN_OR_RETURN(const auto all, comm::gather_values(group, std::vector{mine}));
    for (size_t round = 0; round < mine.size(); ++round) {
      double slowest = 0.0;
      for (const auto& took : all) slowest = std::max(slowest, took[round]);
      best = std::min(best, slowest);
      spent += slowest;
    }
    if (best <= good_seconds || spent >= patience) break;
  }
  return best;
}

// Convert seconds to bytes a second, and back.
double bandwidth(size_t floats, int ranks, double seconds) {
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(floats * sizeof(float)) / seconds;
}

class NetworkCheck {
 public:
  NetworkCheck(const NetworkOptions& options, comm::Meeting& meeting)
      : options_(options), meeting_(meeting) {}

  Result<NetworkResult> run() {
    ASSIGN_OR_RETURN(auto world, meeting_.session.communicator(0));
    world_ = std::move(world);
    RETURN_IF_ERROR(meet_nodes());
    record::Measurement& measured = result_.measured;
    measured.provider = meeting_.session.provider();
    measured.ranks = world_->size();
    result_.is_first = world_->rank() == 0;
    RETURN_IF_ERROR(measure_all());
    const double usual = options_.usual_bytes_per_second;
    const bool suspicious = usual <= 0.0 || measured.bytes_per_second < record::kSlowShare * usual;
    if (suspicious && nodes_.size() > 2) RETURN_IF_ERROR(measure_pairs());
    return std::move(result_);
  }

 private:
  // Readings of the wall clock, Unix seconds, with a barrier after each.
  using Readings = std::array<double, 4>;
  struct Card {
    std::array<char, 256> node;
    Readings readings;
  };

  int node_of(int rank) const {  // index in nodes_
    const int node = meeting_.members[rank] / options_.ranks_per_node;
    return static_cast<int>(std::find(nodes_.begin(), nodes_.end(), node) - nodes_.begin());
  }

  // Finds out who is there, and how their clocks differ.
  Result<void> meet_nodes() {
    Card mine{};
    options_.node.copy(mine.node.data(), mine.node.size() - 1);
    for (double& reading : mine.readings) {
      reading = base::unix_now();
      RETURN_IF_ERROR(comm::complete(*world_, world_->barrier()));
    }
    ASSIGN_OR_RETURN(const auto cards, comm::gather_values(*world_, std::vector{mine}));
    for (size_t rank = 0; rank < cards.size(); ++rank) {
      const int node = meeting_.members[rank] / options_.ranks_per_node;
      if (nodes_.empty() || nodes_.back() != node) {
        nodes_.push_back(node);
        names_.emplace_back(cards[rank].node.data());
        result_.measured.clocks.push_back({names_.back(), -kNever, kNever});
      }
      compare(cards.front().readings, cards[rank].readings, result_.measured.clocks.back());
    }
    return {};
  }

  // A reading is taken after its rank left a barrier, which the first rank had entered before that, and before its
  // rank entered the next barrier, which the first rank left after that. The first rank reads its own clock before
  // it enters and after it has left.
  static void compare(const Readings& first, const Readings& other, record::ClockOffset& clock) {
    for (size_t i = 1; i + 1 < first.size(); ++i) {
      clock.low = std::max(clock.low, other[i] - first[i + 1]);
      clock.high = std::min(clock.high, other[i] - first[i - 1]);
    }
  }

  Result<void> measure_all() {
    if (world_->size() == 1) return {};
    const double usual = options_.usual_bytes_per_second;
    for (size_t floats = kFewestFloats;; floats *= 4) {
      buffer_.assign(floats, 0.0F);
      const double good = usual > 0.0 ? bandwidth(floats, world_->size(), record::kSlowShare * usual) : 0.0;
      ASSIGN_OR_RETURN(const auto seconds,
                       best_seconds(*world_, buffer_, usual > 0.0 ? kLongPatience : kPatience, good));
      result_.measured.bytes = static_cast<int64_t>(floats * sizeof(float));
      result_.measured.bytes_per_second = bandwidth(floats, world_->size(), seconds);
      if (seconds >= kEnoughSeconds || floats >= kMostFloats) return {};
    }
  }

  // Returns the communicator of the ranks of node `edge` and of the next one; it is made once.
  Result<Communicator*> pair(int edge) {
    if (const auto made = groups_.find(edge); made != groups_.end()) return made->second.get();
    const int next = (edge + 1) % static_cast<int>(nodes_.size());
    std::vector<uint32_t> ranks;
    for (int rank = 0; rank < world_->size(); ++rank) {
      if (node_of(rank) == edge || node_of(rank) == next) ranks.push_back(static_cast<uint32_t>(rank));
    }
    const int round = pair_round(edge, static_cast<int>(nodes_.size()));
    ASSIGN_OR_RETURN(auto group, meeting_.session.communicator(channel_of_round(round), ranks));
    return (groups_[edge] = std::move(group)).get();
  }

  // Measures again while a node stands out, and believes the best: what is slow once may have been busy.
  Result<void> measure_pairs() {
    const size_t count = nodes_.size();
    std::vector<record::PairBandwidth>& pairs = result_.measured.pairs;
    for (size_t edge = 0; edge < count; ++edge)
      pairs.push_back({names_[edge], names_[(edge + 1) % count], 0.0});
    for (int look = 0; look < kMostLooks; ++look) {
      ASSIGN_OR_RETURN(const auto seen, look_at_pairs());
      for (int rank = 0; rank < world_->size(); ++rank) {
        double& best = pairs[node_of(rank)].bytes_per_second;
        best = std::max(best, seen[rank]);
      }
      if (!record::any_stands_out(pairs, record::kSlowShare)) break;
    }
    return {};
  }

  // Returns, for each rank, the bandwidth of its node with the next one in the ring.
  Result<std::vector<double>> look_at_pairs() {
    const auto count = static_cast<int>(nodes_.size());
    const int mine = node_of(world_->rank());
    double forward = 0.0;
    const std::array<int, 2> edges = {mine, (mine + count - 1) % count};
    for (int round = 0; round < 2 + count % 2; ++round) {
      RETURN_IF_ERROR(comm::complete(*world_, world_->barrier()));
      for (const int edge : edges) {
        if (pair_round(edge, count) != round) continue;
        ASSIGN_OR_RETURN(auto group, pair(edge));
        ASSIGN_OR_RETURN(const auto seconds, best_seconds(*group, buffer_, kPatience, 0.0));
        if (edge == mine) forward = bandwidth(buffer_.size(), (group)->size(), seconds);
      }
    }
    return comm::gather_values(*world_, std::vector{forward});
  }

  const NetworkOptions& options_;
  comm::Meeting& meeting_;
  std::unique_ptr<Communicator> world_;
  std::map<int, std::unique_ptr<Communicator>> groups_;  // the communicators of pairs
  std::vector<int> nodes_;                               // numbers of the nodes that take part, ascending
  std::vector<std::string> names_;                       // their names
  std::vector<float> buffer_;
  NetworkResult result_;
};

}  // namespace

Result<NetworkResult> check_network(const NetworkOptions& options) {
  comm::WorldOptions world = options.world;
  world.channel_count = kNetworkChannels;
  ASSIGN_OR_RETURN(auto meeting, comm::meet(world));
  auto checked = NetworkCheck(options, meeting).run();
  if (!checked) return meeting.in_world(std::move(checked).error());
  return checked;
}

}  // namespace shardrun::gate
