#include "runtime/measure/collective_times.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace shardrun::measure {
namespace {

using base::Result;
using comm::Communicator;
using record::CollectiveProbe;
using record::Spread;

constexpr int64_t kShardBytes[] = {4 << 10, 256 << 10, 1 << 20, 8 << 20};  // bytes of one rank's part
// Shorter ones are latency, and have the pace of the first of these.
constexpr int64_t kLeastPacedBytes = 256 << 10;
// What the largest of them may be together: more than caches hold, and not what a rank's memory would miss.
constexpr int64_t kMostBytes = 64 << 20;
constexpr double kLongest = 0.15;  // longest time, in seconds, that an operation may be expected to take
constexpr double kFirst = 2e-3;    // the expected time of the first operation
constexpr double kPatience = 0.2;  // for what a sweep times of one size
constexpr double kLeastPace = 0.05;
constexpr int kUnderWay = 2;  // collectives at once
constexpr int kQueued = 4;    // sums of replicas that wait for one another
// All sizes are timed, then all once more: what disturbs a machine for some seconds disturbs one sweep of a size.
constexpr int kSweeps = 2;
constexpr int kParts = 2, kLeastRounds = 4, kMostRounds = 50;
constexpr double kTurnsTime = 0.25;  // for which turns of computing are counted: many of a CPU's slices
constexpr int kLeastBeside = 16, kMostBeside = 60;  // collectives that a sweep times beside computing

// Collectives of one kind and size, kUnderWay of them at once, as the sharding engine has them.
class Stream {
 public:
  Stream(Communicator& group, const CollectiveProbe& probe, const Clocks& clocks)
      : group_(group),
        kind_(probe.kind),
        clocks_(clocks),
        buffers_(probe.kind == "all_reduce" ? 1 + kQueued : kUnderWay) {
    for (Buffers& one : buffers_) {
      one.all.resize(static_cast<size_t>(probe.bytes) / sizeof(float));
      one.mine.resize(one.all.size() / static_cast<size_t>(group.size()));
    }
  }

  static int count_of(int parts, int rounds) { return (2 + parts * rounds) * kUnderWay; }

  // Returns the seconds of one collective in each of `parts` parts, of `rounds` times kUnderWay each. A part begins
  // at the end of one collective and ends at the end of another, with as many others under way: kUnderWay + 1 come before
  // the first part and kUnderWay - 1 after the last, which nobody times. The first ones start together and share what they
  // use, so that they end later than their place in the row: a part that began with them would be too short.
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
      const int timed = ended - kUnderWay;
      if (timed < 0 || timed % part != 0 || timed > parts * part) continue;
      const double now = clocks_.wall();
      if (timed > 0) seconds.push_back((now - begin) / part);
      begin = now;
    }
    return seconds;
  }

  struct Beside {
    double computed = 0.0, waited = 0.0;  // seconds of the wall; to start one counts as computing
    double cpu = 0.0;
  };
  // As a step has them: of `count` collectives each is started, then the rank computes so many `turns`, then it waits for those
  // before; of the sums of replicas, for which a step waits at its end, behind kQueued of them. The first one only makes them two.
  Result<Beside> run_beside(int count, int64_t turns) {
    Beside beside;
    std::deque<comm::Pending> pending;
    ASSIGN_OR_RETURN(comm::Pending first, start(0));
    pending.push_back(std::move(first));
    const double cpu_begin = clocks_.cpu();
    for (int started = 1; started <= count; ++started) {
      const double begin = clocks_.wall();
      ASSIGN_OR_RETURN(comm::Pending next, start(started));
      pending.push_back(std::move(next));
      for (int64_t turn = 0; turn < turns; ++turn) clocks_.work();
      const double waits = clocks_.wall();
      if (pending.size() == buffers_.size() || started == count) RETURN_IF_ERROR(leave_one(pending));
      beside.computed += waits - begin;
      beside.waited += clocks_.wall() - waits;
    }
    beside.cpu = clocks_.cpu() - cpu_begin;
    RETURN_IF_ERROR(group_.wait(pending.front()));
    return beside;
  }

 private:
  struct Buffers {
    std::vector<float> all, mine;
  };

  Result<void> leave_one(std::deque<comm::Pending>& pending) {
    for (; pending.size() > 1; pending.pop_front()) RETURN_IF_ERROR(group_.wait(pending.front()));
    return {};
  }

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
  std::vector<Buffers> buffers_;
};

// One kind and size of a group's collectives, with what each sweep saw of it.
struct Timed {
  CollectiveProbe probe;
  const CollectiveGroup* group = nullptr;
  bool has_pace = false;
  double latest = 0.0;  // seconds of one in the sweep that timed it last
  std::vector<double> seconds, cpu, paces, cpu_beside;

  using Kind = std::pair<const CollectiveGroup*, std::string>;
  Kind kind() const { return {group, probe.kind}; }
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
    RETURN_IF_ERROR(comm::complete(world_, world_.barrier()));
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
    ASSIGN_OR_RETURN(const auto means, mean(seconds));
    const std::vector<double> parts_seconds(means.begin(), means.end() - 1);
    timed.latest = mean_of(parts_seconds);
    timed.seconds.insert(timed.seconds.end(), parts_seconds.begin(), parts_seconds.end());
    timed.cpu.push_back(means.back());
    timed.probe.seconds = Spread::of(timed.seconds);
    timed.probe.cpu_seconds = mean_of(timed.cpu);
    return {};
  }

  // Measures the share of its speed that a collective has while its rank computes, and what it costs then: of what it takes alone,
  // that part has passed behind it when the rank begins to wait. All ranks compute as much, as in a step, and not as long: where
  // they share CPUs some are ready before others, for which collectives wait. They compute half of the time that one takes
  // alone, so that it is not over before they have computed. Its time alone is that of the moment before, and that of computing the
  // one before the first size of its kind: what disturbs the machine for longer disturbs all three.
  Result<void> pace(Timed& timed) {
    if (!turns_ || turns_of_ != timed.kind()) {
      ASSIGN_OR_RETURN(turns_, count_turns());
      turns_of_ = timed.kind();
    }
    const Turns& alone_turns = *turns_;
    Stream stream(*timed.group->group, timed.probe, clocks_);
    const double alone = timed.latest;
    const int count = std::clamp(static_cast<int>(kPatience / alone), kLeastBeside, kMostBeside);
    const auto turns = std::max<int64_t>(1, static_cast<int64_t>(0.5 * alone * alone_turns.per_second + 0.5));
    RETURN_IF_ERROR(comm::complete(world_, world_.barrier()));
    ASSIGN_OR_RETURN(const auto beside, stream.run_beside(count, turns));
    const double computing = static_cast<double>(count * turns) * alone_turns.cpu;
    ASSIGN_OR_RETURN(const auto means, mean({beside.computed, beside.waited, beside.cpu - computing}));
    timed.has_pace = true;
    timed.paces.push_back((count * alone - means[1]) / means[0]);
    if (timed.probe.cpu_seconds > 0.0)
      timed.cpu_beside.push_back(means[2] / (count * timed.probe.cpu_seconds));
    return {};
  }

 private:
  struct Turns {
    double per_second = 0.0, cpu = 0.0;  // of a rank; CPU seconds of one
  };
  // Counts turns of computing while all ranks compute and nothing is under way.
  Result<Turns> count_turns() {
    RETURN_IF_ERROR(comm::complete(world_, world_.barrier()));
    const double begin = clocks_.wall(), cpu_begin = clocks_.cpu();
    double turns = 0.0, now = begin;
    for (; now - begin < kTurnsTime; now = clocks_.wall(), turns += 1.0) clocks_.work();
    ASSIGN_OR_RETURN(const auto means, mean({turns / (now - begin), (clocks_.cpu() - cpu_begin) / turns}));
    return Turns{means[0], means[1]};
  }
  // Returns the mean over all ranks of each value.
  Result<std::vector<double>> mean(const std::vector<double>& mine) {
    ASSIGN_OR_RETURN(const auto all, comm::gather_values(world_, mine));
    std::vector<double> means(mine.size(), 0.0);
    for (size_t i = 0; i < all.size(); ++i)
      means[i % mine.size()] += all[i] / static_cast<double>(world_.size());
    return means;
  }

  Communicator& world_;
  const Clocks& clocks_;
  std::optional<Turns> turns_;  // counted before the first size of this kind
  Timed::Kind turns_of_;
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
    if (kShardBytes[i] >= kLeastPacedBytes) RETURN_IF_ERROR(measurement.pace(one));
    timed.push_back(std::move(one));
  }
  return timed.back().has_pace ? Result<void>() : measurement.pace(timed.back());
}

// One that was not paced has the pace of the next larger of its kind and group.
std::vector<CollectiveProbe> probes_of(const std::vector<Timed>& timed) {
  std::vector<CollectiveProbe> probes;
  double pace = 1.0, cpu_beside = 1.0;
  for (auto one = timed.rbegin(); one != timed.rend(); ++one) {
    if (one->has_pace) {
      pace = std::clamp(mean_of(one->paces), kLeastPace, 1.0);
      cpu_beside = one->cpu_beside.empty() ? 1.0 : std::max(0.0, mean_of(one->cpu_beside));
    }
    probes.push_back(one->probe);
    probes.back().pace = pace;
    probes.back().cpu_beside = cpu_beside;
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
      if (one.has_pace) RETURN_IF_ERROR(measurement.pace(one));
    }
  }
  return probes_of(timed);
}

}  // namespace shardrun::measure
