#include "runtime/measure/collective_times.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "runtime/kernels/ops.h"
#include "runtime/measure/group_values.h"

namespace shardrun::measure {
namespace {

using base::Result;
using comm::Communicator;
using contract::CollectiveProbe;
using contract::Spread;

constexpr int64_t kShardBytes[] = {4 << 10, 256 << 10, 2 << 20};  // of one rank
constexpr double kLongest = 2.5;  // seconds that an operation may be expected to take
// Collectives between nodes differ from one to the next, by how the messages of all ranks happen to meet.
constexpr double kBatchSeconds = 0.05;
constexpr int kBatches = 7, kLeastBatches = 3, kMostInBatch = 100;
constexpr int kMostBeside = 24;    // where cores are shared, each may wait a tenth of a second for them
constexpr double kPatience = 0.8;  // for the batches of one size

// Work of a rank that computes beside a collective: a product that stays in its caches.
class Chunk {
 public:
  void run() { kernels::linear_forward(product_.data(), left_.data(), right_.data(), kSize, kSize, kSize); }
  // CPU seconds of one, with every rank at it.
  Result<double> seconds(Communicator& world) {
    constexpr int kWarm = 20, kRuns = 200;
    for (int i = 0; i < kWarm; ++i) run();
    RETURN_IF_ERROR(complete(world, world.barrier()));
    const double begin = cpu_seconds();
    for (int i = 0; i < kRuns; ++i) run();
    const double seconds = (cpu_seconds() - begin) / kRuns;
    RETURN_IF_ERROR(complete(world, world.barrier()));
    return seconds;
  }

 private:
  static constexpr int64_t kSize = 192;
  using Matrix = std::vector<kernels::Bf16>;
  Matrix left_ = Matrix(kSize * kSize), right_ = left_, product_ = left_;
};

// One kind of collective of one size, as often as wanted, two at a time as the sharding engine has them.
class Repeated {
 public:
  Repeated(Communicator& group, const CollectiveProbe& probe) : group_(group), kind_(probe.kind) {
    for (Buffers& one : buffers_) {
      one.all.resize(static_cast<size_t>(probe.bytes) / sizeof(float));
      one.mine.resize(one.all.size() / static_cast<size_t>(group.size()));
    }
  }

  Result<void> run(int times) {
    Result<comm::Pending> last = start(0);
    for (int i = 1; i < times; ++i) {
      Result<comm::Pending> next = start(i);
      RETURN_IF_ERROR(complete(group_, std::move(last)));
      last = std::move(next);
    }
    return complete(group_, std::move(last));
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
  std::array<Buffers, 2> buffers_;
};

class Measurement {
 public:
  // `wake_seconds`: how late a thread wakes beside computing.
  Measurement(Communicator& world, const CollectiveGroup& group, double chunk_seconds, double wake_seconds)
      : world_(world), group_(group), chunk_seconds_(chunk_seconds), wake_seconds_(wake_seconds) {}

  Result<void> fill(CollectiveProbe& probe, Chunk& chunk) {
    Repeated repeated(*group_.group, probe);
    const double begin = wall_seconds();
    RETURN_IF_ERROR(repeated.run(2));
    auto once = slowest((wall_seconds() - begin) / 2.0);
    if (!once) return std::move(once).error();
    const int count = std::clamp(static_cast<int>(kBatchSeconds / *once), 1, kMostInBatch);
    RETURN_IF_ERROR(time_alone(repeated, count, probe));
    return time_beside(repeated, chunk, count, probe);
  }

 private:
  Result<double> slowest(double mine) {
    const auto all = gather_values(world_, {mine});
    if (!all) return all.error();
    return *std::max_element(all->begin(), all->end());
  }

  Result<void> time_alone(Repeated& repeated, int count, CollectiveProbe& probe) {
    std::vector<double> batches;
    double cpu = 0.0, spent = 0.0;
    for (int batch = 0; batch < kBatches && (batch < kLeastBatches || spent < kPatience); ++batch) {
      RETURN_IF_ERROR(complete(world_, world_.barrier()));
      const double begin = wall_seconds(), cpu_begin = cpu_seconds();
      RETURN_IF_ERROR(repeated.run(count));
      cpu += cpu_seconds() - cpu_begin;
      const auto longest = slowest(wall_seconds() - begin);
      if (!longest) return longest.error();
      spent += *longest;
      batches.push_back(*longest / count);
    }
    const auto shared = mean(cpu / (count * static_cast<double>(batches.size())));
    if (!shared) return shared.error();
    probe.seconds = Spread::of(std::move(batches));
    probe.cpu_seconds = *shared;
    return {};
  }

  // The collectives on a helper thread, while this one computes until they are over.
  Result<void> time_beside(Repeated& repeated, Chunk& chunk, int count, CollectiveProbe& probe) {
    const int times = std::min(2 * count, kMostBeside);
    RETURN_IF_ERROR(complete(world_, world_.barrier()));
    const double begin = wall_seconds(), cpu_begin = cpu_seconds();
    int64_t chunks = 0;
    double seconds = 0.0;
    Result<void> outcome;
    std::atomic<bool> over{false};
    std::thread helper([&] {
      outcome = repeated.run(times);
      seconds = (wall_seconds() - begin) / times;
      over.store(true);
    });
    for (; !over.load(); ++chunks) chunk.run();
    helper.join();
    const double cpu = (cpu_seconds() - cpu_begin - chunk_seconds_ * static_cast<double>(chunks)) / times;
    RETURN_IF_ERROR(std::move(outcome));
    const auto longest = slowest(seconds);
    if (!longest) return longest.error();
    const auto shared = mean(cpu);
    if (!shared) return shared.error();
    probe.beside_seconds = std::max(*longest - wake_seconds_, probe.seconds.median);
    probe.beside_cpu_seconds = std::max(0.0, *shared);
    return {};
  }

  Result<double> mean(double mine) {
    const auto all = gather_values(world_, {mine});
    if (!all) return all.error();
    return std::accumulate(all->begin(), all->end(), 0.0) / static_cast<double>(all->size());
  }

  Communicator& world_;
  const CollectiveGroup& group_;
  double chunk_seconds_, wake_seconds_;
};

// How late a thread of a rank wakes while every rank computes: what a helper adds to what it times.
Result<double> wake_seconds(Communicator& world, Chunk& chunk) {
  constexpr int kWakes = 25;
  std::vector<double> late(kWakes, 0.0);
  RETURN_IF_ERROR(complete(world, world.barrier()));
  std::atomic<bool> over{false};
  std::thread helper([&] {
    for (double& one : late) {
      constexpr double kSleep = 2e-3;
      const double begin = wall_seconds();
      std::this_thread::sleep_for(std::chrono::duration<double>(kSleep));
      one = wall_seconds() - begin - kSleep;
    }
    over.store(true);
  });
  while (!over.load()) chunk.run();
  helper.join();
  const auto all = gather_values(world, {Spread::of(late).median});
  if (!all) return all.error();
  return *std::max_element(all->begin(), all->end());
}

}  // namespace

Result<std::vector<CollectiveProbe>> time_collectives(Communicator& world,
                                                      const std::vector<CollectiveGroup>& groups,
                                                      const std::function<void(const std::string&)>& told) {
  Chunk chunk;
  const auto chunk_seconds = chunk.seconds(world);
  if (!chunk_seconds) return chunk_seconds.error();
  std::vector<CollectiveProbe> probes;
  const auto late = wake_seconds(world, chunk);
  if (!late) return late.error();
  for (const CollectiveGroup& group : groups) {
    told(fmt::format("collectives among {} of {} nodes", group.among, group.nodes));
    for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
      for (const int64_t shard : kShardBytes) {
        if (shard > kShardBytes[1]) {
          const CollectiveProbe &small = *(probes.end() - 2), &large = probes.back();
          const double more = static_cast<double>(shard * group.ranks - large.bytes);
          const double slope =
              (large.seconds.median - small.seconds.median) / static_cast<double>(large.bytes - small.bytes);
          if (large.seconds.median + slope * more > kLongest) break;
        }
        CollectiveProbe probe{.kind = kind,
                              .among = group.among,
                              .nodes = group.nodes,
                              .ranks = group.ranks,
                              .bytes = shard * group.ranks};
        RETURN_IF_ERROR(Measurement(world, group, *chunk_seconds, *late).fill(probe, chunk));
        probes.push_back(std::move(probe));
      }
    }
  }
  return probes;
}

}  // namespace shardrun::measure
