// A network whose speed is known, in the time of a clock that only it moves: a collective has a latency, which
// passes for all that are under way at once, and then the wire carries its bytes, one collective after the other.
#include "runtime/measure/collective_times.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>

using namespace shardrun;
using base::Result;
using comm::Pending;
using record::CollectiveProbe;

namespace {

struct Speed {
  // Bytes are those of the buffer that the group holds together.
  double latency = 0.0, seconds_per_byte = 0.0, cpu = 0.0;

  double wire(int64_t bytes) const { return seconds_per_byte * static_cast<double>(bytes); }
  // Returns the time of one, while two are under way.
  double of_two(int64_t bytes) const { return std::max(wire(bytes), (latency + wire(bytes)) / 2.0); }
};

struct Network {
  std::map<std::string, Speed> speeds = {{"all_gather", {4e-3, 1e-10, 1e-4}},     // all of it is latency
                                         {"reduce_scatter", {1e-5, 2e-8, 3e-4}},  // all of it is bytes
                                         {"all_reduce", {2e-3, 3e-9, 2e-4}}};     // one part, then the other
  double lateness = 0.0;         // of the last rank, for which a wait behind some computing waits as well
  double cost_of_turn = 0.0;     // CPU seconds
  double dearer = 1.0;           // times its cost, for a collective beside which its rank has computed
  bool first_two_share = false;  // two that begin at once on an idle wire end at once
  int disturbed = -1;            // this collective, counted from 0, takes a second longer
  double wall = 100.0, cpu = 50.0;
  int64_t started = 0;
  std::string fault;  // what was wrong with a call; empty: nothing
};

class KnownGroup final : public comm::Communicator {
 public:
  // `pace`: the share of their speed that its collectives have while the ranks compute.
  KnownGroup(Network& network, int ranks, double pace) : network_(network), ranks_(ranks), pace_(pace) {}

  int rank() const override { return 0; }
  int size() const override { return ranks_; }

  Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (all.size() != mine.size() * static_cast<size_t>(ranks_)) network_.fault = "all_gather: sizes";
    return start("all_gather", all.size(), {mine.data(), all.data()});
  }
  Result<Pending> reduce_scatter(std::span<const float> full, std::span<float> mine) override {
    if (full.size() != mine.size() * static_cast<size_t>(ranks_)) network_.fault = "reduce_scatter: sizes";
    return start("reduce_scatter", full.size_bytes(), {full.data(), mine.data()});
  }
  Result<Pending> all_reduce(std::span<float> buffer) override {
    return start("all_reduce", buffer.size_bytes(), {buffer.data()});
  }
  Result<Pending> reduce_scatter(std::span<const comm::Bf16>, std::span<comm::Bf16>) override {
    return other();
  }
  Result<Pending> all_reduce(std::span<double>) override { return other(); }
  Result<Pending> all_reduce(std::span<comm::Bf16>) override { return other(); }
  Result<Pending> broadcast(std::span<std::byte>, int) override { return other(); }
  Result<Pending> barrier() override { return other(); }

  // The ranks have computed for some time, for which what is under way went at its pace.
  void fall_behind(double seconds) {
    computed_ = true;
    for (auto& [ticket, one] : under_way_) one.is_beside = true;
    delay((1.0 - pace_) * seconds);
  }

  Result<void> wait(Pending pending) override {
    if (computed_) delay(network_.lateness);
    computed_ = false;
    const Operation& one = under_way_.at(pending.ticket);
    network_.wall = std::max(network_.wall, one.end);
    network_.cpu += one.cpu * (one.is_beside ? network_.dearer : 1.0);
    under_way_.erase(pending.ticket);
    return {};
  }

 private:
  struct Operation {
    double end, cpu;
    std::vector<const void*> buffers;
    bool is_beside = false, found_idle = false;
    double began = 0.0;
  };

  void delay(double seconds) {
    for (auto& [ticket, one] : under_way_) one.end += seconds;
    wire_free_ += seconds;
  }
  Result<Pending> start(const std::string& kind, size_t bytes, std::vector<const void*> buffers) {
    for (const auto& [ticket, other] : under_way_)
      for (const void* buffer : other.buffers)
        if (std::find(buffers.begin(), buffers.end(), buffer) != buffers.end())
          network_.fault = kind + ": a buffer that is under way";
    const Speed& speed = network_.speeds.at(kind);
    const double arrival = network_.wall + speed.latency;
    wire_free_ = std::max(arrival, wire_free_) + speed.wire(static_cast<int64_t>(bytes));
    if (count_++ == network_.disturbed) wire_free_ += 1.0;
    ++network_.started;
    Operation* const first = under_way_.size() == 1 ? &under_way_.begin()->second : nullptr;
    if (network_.first_two_share && first != nullptr && first->found_idle && first->began == network_.wall)
      first->end = wire_free_;
    under_way_[++ticket_] = {.end = wire_free_,
                             .cpu = speed.cpu,
                             .buffers = std::move(buffers),
                             .found_idle = first == nullptr,
                             .began = network_.wall};
    return Pending{ticket_};
  }
  Result<Pending> other() {
    network_.fault = "nobody times that";
    return Pending{};
  }

  Network& network_;
  const int ranks_;
  const double pace_;
  std::map<uint64_t, Operation> under_way_;
  uint64_t ticket_ = 0;
  double wire_free_ = 0.0;
  bool computed_ = false;
  int count_ = 0;
};

// Brings the ranks' values together, at no cost: rank r measured `factors[r]` times what this one did.
class World final : public comm::Communicator {
 public:
  explicit World(std::vector<double> factors) : factors_(std::move(factors)) {}

  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(factors_.size()); }
  Result<Pending> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const std::span<const double> from(reinterpret_cast<const double*>(mine.data()), mine.size() / 8);
    auto* to = reinterpret_cast<double*>(all.data());
    for (const double factor : factors_)
      for (const double value : from) *to++ = factor * value;
    return Pending{};
  }
  Result<Pending> reduce_scatter(std::span<const float>, std::span<float>) override { return Pending{}; }
  Result<Pending> all_reduce(std::span<float>) override { return Pending{}; }
  Result<Pending> reduce_scatter(std::span<const comm::Bf16>, std::span<comm::Bf16>) override {
    return Pending{};
  }
  Result<Pending> all_reduce(std::span<double>) override { return Pending{}; }
  Result<Pending> all_reduce(std::span<comm::Bf16>) override { return Pending{}; }
  Result<Pending> broadcast(std::span<std::byte>, int) override { return Pending{}; }
  Result<Pending> barrier() override { return Pending{}; }
  Result<void> wait(Pending) override { return {}; }

 private:
  std::vector<double> factors_;
};

constexpr int kRanks = 2;

struct Case {
  std::vector<double> ranks = {1.0};  // the World's
  bool only_replicas = false;
  int group_ranks = kRanks;
  std::vector<double> paces = {1.0};  // one group each
};

std::vector<CollectiveProbe> time_on(Network& network, const Case& how = {}) {
  constexpr double kTurn = 1e-5;
  World world(how.ranks);
  std::deque<KnownGroup> known;
  std::vector<measure::CollectiveGroup> groups;
  for (const double pace : how.paces)
    groups.push_back({groups.empty() ? "network" : "all", &known.emplace_back(network, how.group_ranks, pace),
                      2, how.group_ranks, how.only_replicas});
  const measure::Clocks clocks{[&] { return network.wall; }, [&] { return network.cpu; },
                               [&] {
                                 network.wall += kTurn;
                                 network.cpu += network.cost_of_turn;
                                 for (KnownGroup& group : known) group.fall_behind(kTurn);
                               }};
  auto probes = measure::time_collectives(
      world, groups, [](const std::string&) {}, clocks);
  REQUIRE(probes);
  CHECK_EQ(network.fault, "");
  return *probes;
}

// Returns each kind's sizes, "all_gather 8192 524288 2097152 …".
std::string sizes_of(const std::vector<CollectiveProbe>& probes) {
  std::string text, kind;
  for (const CollectiveProbe& probe : probes) {
    if (kind != probe.kind) text += (text.empty() ? "" : " ") + (kind = probe.kind);
    text += " " + std::to_string(probe.bytes);
  }
  return text;
}

const std::string kAllSizes =
    "all_gather 8192 524288 2097152 16777216 reduce_scatter 8192 524288 2097152 16777216 "
    "all_reduce 8192 524288 2097152 16777216";
// The largest one's bytes would take longer than is waited for.
const std::string kKnownSizes =
    "all_gather 8192 524288 2097152 16777216 reduce_scatter 8192 524288 2097152 "
    "all_reduce 8192 524288 2097152 16777216";

}  // namespace

TEST_CASE("time_collectives: of two under way each has half of the latency, or its bytes' time on the wire") {
  Network network;

  const auto probes = time_on(network);

  CHECK_EQ(sizes_of(probes), kKnownSizes);
  for (const CollectiveProbe& probe : probes) {
    CAPTURE(probe.kind);
    CAPTURE(probe.bytes);
    const double seconds = network.speeds[probe.kind].of_two(probe.bytes);
    CHECK_EQ(probe.seconds.low, doctest::Approx(seconds));
    CHECK_EQ(probe.seconds.median, doctest::Approx(seconds));
    CHECK_EQ(probe.seconds.high, doctest::Approx(seconds));
    CHECK_EQ(probe.among, "network");
    CHECK_EQ(probe.nodes, 2);
    CHECK_EQ(probe.ranks, kRanks);
  }
}

TEST_CASE("time_collectives: that the first ones share the wire makes nothing faster") {
  Network network;
  network.first_two_share = true;

  for (const CollectiveProbe& probe : time_on(network)) {
    CAPTURE(probe.kind);
    CAPTURE(probe.bytes);
    const double seconds = network.speeds[probe.kind].of_two(probe.bytes);
    CHECK_EQ(probe.seconds.low, doctest::Approx(seconds));
    CHECK_EQ(probe.seconds.high, doctest::Approx(seconds));
  }
}

TEST_CASE("time_collectives: a collective's CPU time is what one costs its rank") {
  Network network;

  for (const CollectiveProbe& probe : time_on(network))
    CHECK_EQ(probe.cpu_seconds, doctest::Approx(network.speeds[probe.kind].cpu));
}

TEST_CASE(
    "time_collectives: the pace is the share of its speed that a collective has while its rank computes") {
  for (const double pace : {1.0, 0.6, 0.25}) {
    Network network;
    // Of all, the bytes are most.
    for (auto& [kind, speed] : network.speeds) speed.latency = 1e-5;

    for (const CollectiveProbe& probe : time_on(network, {.paces = {pace}}))
      CHECK_EQ(probe.pace, doctest::Approx(pace).epsilon(0.03));
  }
}

TEST_CASE(
    "time_collectives: ranks wait for the last one behind each collective, and behind four sums of "
    "replicas") {
  Network network;
  for (auto& [kind, speed] : network.speeds) speed = {1e-5, 1e-8, 0.0};  // 5, 21 and 168 ms
  network.lateness = 1e-3;

  for (const CollectiveProbe& probe : time_on(network)) {
    // What is latency alone has the pace of the next size.
    const auto bytes = static_cast<double>(std::max<int64_t>(probe.bytes, 524288));
    const double share = network.lateness / (0.5 * 1e-8 * bytes);  // of what a rank computes meanwhile
    const double late = probe.kind == "all_reduce" ? share / 4.0 : share;
    CAPTURE(probe.kind);
    CAPTURE(probe.bytes);
    CHECK_EQ(probe.pace, doctest::Approx(1.0 - late).epsilon(0.03));
  }
}

TEST_CASE(
    "time_collectives: what a collective costs while its rank computes is told from what computing costs") {
  for (const double dearer : {1.0, 1.5}) {
    Network network;
    network.cost_of_turn = 3e-6;
    network.dearer = dearer;

    for (const CollectiveProbe& probe : time_on(network)) {
      CHECK_EQ(probe.cpu_seconds, doctest::Approx(network.speeds[probe.kind].cpu));
      CHECK_EQ(probe.cpu_beside, doctest::Approx(dearer).epsilon(0.01));
    }
  }
}

TEST_CASE("time_collectives: groups that come one behind the other have paces of their own") {
  Network network;
  for (auto& [kind, speed] : network.speeds) speed.latency = 1e-5;

  // Both are asked for sums alone: no other kind is between them.
  for (const CollectiveProbe& probe : time_on(network, {.only_replicas = true, .paces = {0.9, 0.3}}))
    CHECK_EQ(probe.pace, doctest::Approx(probe.among == "network" ? 0.9 : 0.3).epsilon(0.03));
}

TEST_CASE("time_collectives: each value is the mean of all ranks'") {
  Network network;

  const auto probes = time_on(network, {.ranks = {1.0, 2.0, 6.0}});

  CHECK_EQ(sizes_of(probes), kKnownSizes);
  for (const CollectiveProbe& probe : probes) {
    const Speed& speed = network.speeds[probe.kind];
    CHECK_EQ(probe.seconds.median, doctest::Approx(3.0 * speed.of_two(probe.bytes)));
    CHECK_EQ(probe.cpu_seconds, doctest::Approx(3.0 * speed.cpu));
  }
}

TEST_CASE("time_collectives: a part that something disturbs leaves the median as it is") {
  Network network;
  network.disturbed = 9;

  const auto probes = time_on(network);

  CHECK_EQ(probes.front().seconds.median,
           doctest::Approx(network.speeds["all_gather"].of_two(probes.front().bytes)));
}

TEST_CASE(
    "time_collectives: sizes that would take too long are left out, and a fast network is not timed for "
    "ever") {
  Network slow, fast;
  for (auto& [kind, speed] : slow.speeds) speed = {1e-3, 1e-7, 0.0};  // 0.05 s, 0.2 s
  for (auto& [kind, speed] : fast.speeds) speed = {1e-6, 1e-12, 0.0};

  const auto few = time_on(slow), all = time_on(fast);

  CHECK_EQ(sizes_of(few), "all_gather 8192 524288 reduce_scatter 8192 524288 all_reduce 8192 524288");
  CHECK_LT(slow.wall - 100.0, 6 * 2.5);
  CHECK_EQ(sizes_of(all), kAllSizes);
  CHECK_LT(fast.started, 12 * 209 + 18 * 63);
}

TEST_CASE("time_collectives: a group that only replicas have is asked for nothing but sums") {
  Network network;

  const auto probes = time_on(network, {.only_replicas = true});

  CHECK_EQ(sizes_of(probes), "all_reduce 8192 524288 2097152 16777216");
}

TEST_CASE("time_collectives: many ranks bring no more together than their memory has room for") {
  Network network;
  for (auto& [kind, speed] : network.speeds) speed = {1e-6, 1e-12, 0.0};

  const auto probes = time_on(network, {.only_replicas = true, .group_ranks = 16});

  CHECK_EQ(sizes_of(probes), "all_reduce 65536 4194304 16777216");
}
