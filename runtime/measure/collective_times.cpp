#include "runtime/measure/collective_times.h"

#include <algorithm>
#include <array>
#include <deque>
#include <string_view>

#include <fmt/format.h>

namespace shardrun::measure {
namespace {

using base::Result;
using comm::Communicator;
using record::CollectiveProbe;
using record::Spread;

constexpr int64_t kShardBytes[] = {4 << 10, 256 << 10, 1 << 20, 8 << 20};  // bytes of one rank's part
// What the largest of them may be together: more than caches hold, and not what a rank's memory would miss.
constexpr int64_t kMostBytes = 64 << 20;
constexpr double kLongest = 0.15;  // longest time, in seconds, that an operation may be expected to take
constexpr double kFirst = 2e-3;    // the expected time of the first operation
constexpr double kPatience = 0.4;  // for all that is timed for one size
constexpr double kLeastPace = 0.05;
constexpr int kUnderWay = 2;  // collectives at once
constexpr int kParts = 3, kLeastRounds = 6, kMostRounds = 100;
constexpr int kLeastBeside = 8, kMostBeside = 60;  // collectives that are timed beside computing

// Collectives of one kind and size, kUnderWay of them at once, as the sharding engine has them.
class Stream {
 public:
  Stream(Communicator& group, const CollectiveProbe& probe, const Clocks& clocks)
      : group_(group), kind_(probe.kind), clocks_(clocks) {
    for (Buffers& one : buffers_) {
      one.all.resize(static_cast<size_t>(probe.bytes) / sizeof(float));
      one.mine.resize(one.all.size() / static_cast<size_t>(group.size()));
    }
  }

  static int count_of(int parts, int rounds) { return (1 + parts * rounds) * kUnderWay; }

  // Returns the seconds of one collective in each of `parts` parts, of `rounds` times kUnderWay each. A part begins
  // at the end of one collective and ends at the end of another, with as many others under way: one comes before
  // the first part and kUnderWay - 1 after the last, which nobody times.
  Result<std::vector<double>> run(int parts, int rounds) {
    std::deque<comm::Pending> pending;
    std::vector<double> seconds;
    double begin = 0.0;
    const int part = rounds * kUnderWay, count = count_of(parts, rounds);
    for (int started = 0, ended = 0; ended < count; ++ended) {
      while (started < count && pending.size() < kUnderWay) {
        ASSIGN_OR_RETURN(auto next, start(started++));
        pending.push_back(std::move(next));
      }
      RETURN_IF_ERROR(group_.wait(pending.front()));
      pending.pop_front();
      if (ended % part != 0 || ended > parts * part) continue;
      const double now = clocks_.wall();
      if (ended > 0) seconds.push_back((now - begin) / part);
      begin = now;
    }
    return seconds;
  }

  struct Beside {
    double computed = 0.0, waited = 0.0;  // seconds of the wall, of all together
  };
  // As a step has them: of `count` collectives each is started, then the rank computes for `seconds`, then it waits for the one
  // before. The first one only makes them two.
  Result<Beside> run_beside(int count, double seconds) {
    Beside beside;
    ASSIGN_OR_RETURN(comm::Pending before, start(0));
    for (int started = 1; started <= count; ++started) {
      ASSIGN_OR_RETURN(comm::Pending next, start(started));
      const double begin = clocks_.wall();
      while (clocks_.wall() - begin < seconds) clocks_.work();
      const double waits = clocks_.wall();
      RETURN_IF_ERROR(group_.wait(before));
      beside.computed += waits - begin;
      beside.waited += clocks_.wall() - waits;
      before = std::move(next);
    }
    RETURN_IF_ERROR(group_.wait(before));
    return beside;
  }

 private:
  struct Buffers {
    std::vector<float> all, mine;
  };

  Result<comm::Pending> start(int time) {
    Buffers& one = buffers_[static_cast<size_t>(time) % buffers_.size()];
    if (kind_ == "all_gather")
      return group_.all_gather(std::as_bytes(std::span<const float>(one.mine)),
                               std::as_writable_bytes(std::span<float>(one.all)));
    if (kind_ == "reduce_scatter") return group_.reduce_scatter(one.all, one.mine);
    return group_.all_reduce(std::span<float>(one.all));
  }

  Communicator& group_;
  std::string kind_;
  const Clocks& clocks_;
  std::array<Buffers, kUnderWay> buffers_;
};

class Measurement {
 public:
  Measurement(Communicator& world, const CollectiveGroup& group, const Clocks& clocks)
      : world_(world), group_(group), clocks_(clocks) {}

  // `expected` is the seconds of one collective; 0 if nobody knows.
  Result<void> fill(CollectiveProbe& probe, double expected) {
    Stream stream(*group_.group, probe, clocks_);
    RETURN_IF_ERROR(complete(world_, world_.barrier()));
    if (expected == 0.0) {
      const double begin = clocks_.wall();
      RETURN_IF_ERROR(stream.run(0, 1));
      ASSIGN_OR_RETURN(const auto took, mean({(clocks_.wall() - begin) / Stream::count_of(0, 1)}));
      expected = took.front();
    }
    const int rounds =
        std::clamp(static_cast<int>(kPatience / (kUnderWay * expected)), kLeastRounds, kMostRounds);
    const int parts = std::min(rounds, kParts);
    const double cpu_begin = clocks_.cpu();
    ASSIGN_OR_RETURN(auto seconds, stream.run(parts, rounds / parts));
    seconds.push_back((clocks_.cpu() - cpu_begin) / Stream::count_of(parts, rounds / parts));
    ASSIGN_OR_RETURN(auto means, mean(std::move(seconds)));
    probe.cpu_seconds = means.back();
    means.pop_back();
    probe.seconds = Spread::of(std::move(means));
    return {};
  }

  // Returns the share of its speed that a collective has while its rank computes: of what it takes alone, that part has passed
  // behind it when the rank begins to wait.
  Result<double> pace(const CollectiveProbe& probe) {
    Stream stream(*group_.group, probe, clocks_);
    const double alone = probe.seconds.median;
    const int count = std::clamp(static_cast<int>(kPatience / alone), kLeastBeside, kMostBeside);
    RETURN_IF_ERROR(complete(world_, world_.barrier()));
    ASSIGN_OR_RETURN(const auto beside, stream.run_beside(count, alone));
    ASSIGN_OR_RETURN(const auto means, mean({beside.computed, beside.waited}));
    return std::clamp((count * alone - means[1]) / means[0], kLeastPace, 1.0);
  }

 private:
  // Returns the mean over all ranks of each value.
  Result<std::vector<double>> mean(std::vector<double> mine) {
    const size_t count = mine.size();
    ASSIGN_OR_RETURN(const auto all, gather_values(world_, std::move(mine)));
    std::vector<double> means(count, 0.0);
    for (size_t i = 0; i < all.size(); ++i) means[i % count] += all[i] / static_cast<double>(world_.size());
    return means;
  }

  Communicator& world_;
  const CollectiveGroup& group_;
  const Clocks& clocks_;
};

}  // namespace

Result<std::vector<CollectiveProbe>> time_collectives(Communicator& world,
                                                      const std::vector<CollectiveGroup>& groups,
                                                      const std::function<void(const std::string&)>& told,
                                                      const Clocks& clocks) {
  std::vector<CollectiveProbe> probes;
  for (const CollectiveGroup& group : groups) {
    told(fmt::format("collectives among {} of {} nodes", group.among, group.nodes));
    for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
      if (group.only_replicas && std::string_view(kind) != "all_reduce") continue;
      for (const int64_t shard : kShardBytes) {
        if (shard > kShardBytes[2] && shard * group.ranks > kMostBytes) break;
        double expected = shard == kShardBytes[0] ? kFirst : 0.0;
        if (shard > kShardBytes[1]) {
          const CollectiveProbe &small = *(probes.end() - 2), &large = probes.back();
          const double more = static_cast<double>(shard * group.ranks - large.bytes);
          const double slope =
              (large.seconds.median - small.seconds.median) / static_cast<double>(large.bytes - small.bytes);
          expected = large.seconds.median + slope * more;
          if (expected > kLongest) break;
        }
        CollectiveProbe probe{.kind = kind,
                              .among = group.among,
                              .nodes = group.nodes,
                              .ranks = group.ranks,
                              .bytes = shard * group.ranks};
        RETURN_IF_ERROR(Measurement(world, group, clocks).fill(probe, expected));
        probes.push_back(std::move(probe));
      }
      ASSIGN_OR_RETURN(const double pace, Measurement(world, group, clocks).pace(probes.back()));
      for (auto probe = probes.rbegin(); probe != probes.rend() && probe->kind == kind; ++probe)
        probe->pace = pace;
    }
  }
  return probes;
}

}  // namespace shardrun::measure
