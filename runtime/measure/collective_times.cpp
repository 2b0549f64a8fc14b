#include "runtime/measure/collective_times.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <numeric>
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
constexpr double kPatience = 0.2;  // for what a sweep times of one size
constexpr double kLeastPace = 0.05;
constexpr int kUnderWay = 2;  // collectives at once
// All sizes are timed, then all once more: what disturbs a machine for some seconds disturbs one sweep of a size.
constexpr int kSweeps = 2;
constexpr int kParts = 2, kLeastRounds = 4, kMostRounds = 50;
constexpr int kLeastBeside = 8, kMostBeside = 30;  // collectives that a sweep times beside computing

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

// One kind and size of a group's collectives, with what each sweep saw of it.
struct Timed {
  CollectiveProbe probe;
  const CollectiveGroup* group = nullptr;
  bool largest = false;  // of its kind and group
  std::vector<double> seconds, cpu, paces;
};

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

class Measurement {
 public:
  Measurement(Communicator& world, const Clocks& clocks) : world_(world), clocks_(clocks) {}

  // `expected` is the seconds of one collective; 0 if nobody knows.
  Result<void> time(Timed& timed, double expected) {
    Stream stream(*timed.group->group, timed.probe, clocks_);
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
    ASSIGN_OR_RETURN(const auto means, mean(std::move(seconds)));
    timed.seconds.insert(timed.seconds.end(), means.begin(), means.end() - 1);
    timed.cpu.push_back(means.back());
    timed.probe.seconds = Spread::of(timed.seconds);
    timed.probe.cpu_seconds = mean_of(timed.cpu);
    return {};
  }

  // Measures the share of its speed that a collective has while its rank computes: of what it takes alone, that part has passed
  // behind it when the rank begins to wait.
  Result<void> pace(Timed& timed) {
    Stream stream(*timed.group->group, timed.probe, clocks_);
    const double alone = timed.probe.seconds.median;
    const int count = std::clamp(static_cast<int>(kPatience / alone), kLeastBeside, kMostBeside);
    RETURN_IF_ERROR(complete(world_, world_.barrier()));
    ASSIGN_OR_RETURN(const auto beside, stream.run_beside(count, alone));
    ASSIGN_OR_RETURN(const auto means, mean({beside.computed, beside.waited}));
    timed.paces.push_back((count * alone - means[1]) / means[0]);
    return {};
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
  const Clocks& clocks_;
};

// Returns what one of `bytes` is expected to take, by a line through the two sizes below; 0 where there are none.
double expected_of(const std::vector<Timed>& timed, size_t sizes_below, int64_t bytes) {
  if (sizes_below == 0) return kFirst;
  if (sizes_below == 1) return 0.0;
  const CollectiveProbe &small = (timed.end() - 2)->probe, &large = timed.back().probe;
  const double slope =
      (large.seconds.median - small.seconds.median) / static_cast<double>(large.bytes - small.bytes);
  return large.seconds.median + slope * static_cast<double>(bytes - large.bytes);
}

// The first sweep, which finds the sizes that a kind of a group is timed for.
Result<void> time_sizes(Measurement& measurement, const CollectiveGroup& group, const char* kind,
                        std::vector<Timed>& timed) {
  for (size_t i = 0; i < std::size(kShardBytes); ++i) {
    const int64_t bytes = kShardBytes[i] * group.ranks;
    if (i > 2 && bytes > kMostBytes) break;
    const double expected = expected_of(timed, i, bytes);
    if (expected > kLongest) break;
    Timed one{.probe = {.kind = kind,
                        .among = group.among,
                        .nodes = group.nodes,
                        .ranks = group.ranks,
                        .bytes = bytes},
              .group = &group};
    RETURN_IF_ERROR(measurement.time(one, expected));
    timed.push_back(std::move(one));
  }
  timed.back().largest = true;
  return measurement.pace(timed.back());
}

// Smaller ones have the pace of the largest of their kind and group.
std::vector<CollectiveProbe> probes_of(const std::vector<Timed>& timed) {
  std::vector<CollectiveProbe> probes;
  double pace = 1.0;
  for (auto one = timed.rbegin(); one != timed.rend(); ++one) {
    if (one->largest) pace = std::clamp(mean_of(one->paces), kLeastPace, 1.0);
    probes.push_back(one->probe);
    probes.back().pace = pace;
  }
  std::reverse(probes.begin(), probes.end());
  return probes;
}

}  // namespace

Result<std::vector<CollectiveProbe>> time_collectives(Communicator& world,
                                                      const std::vector<CollectiveGroup>& groups,
                                                      const std::function<void(const std::string&)>& told,
                                                      const Clocks& clocks) {
  const auto tell = [&](const CollectiveGroup& group, int sweep) {
    told(fmt::format("collectives among {} of {} nodes, {} of {}", group.among, group.nodes, sweep, kSweeps));
  };
  Measurement measurement(world, clocks);
  std::vector<Timed> timed;
  for (const CollectiveGroup& group : groups) {
    tell(group, 1);
    for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
      if (group.only_replicas && std::string_view(kind) != "all_reduce") continue;
      RETURN_IF_ERROR(time_sizes(measurement, group, kind, timed));
    }
  }
  for (int sweep = 2; sweep <= kSweeps; ++sweep) {
    const CollectiveGroup* before = nullptr;
    for (Timed& one : timed) {
      if (one.group != before) tell(*(before = one.group), sweep);
      RETURN_IF_ERROR(measurement.time(one, one.probe.seconds.median));
      if (one.largest) RETURN_IF_ERROR(measurement.pace(one));
    }
  }
  return probes_of(timed);
}

}  // namespace shardrun::measure
