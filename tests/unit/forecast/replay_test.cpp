// A machine whose seconds are known exactly: computing takes 1 ns for every two FLOP of a product, a collective
// takes 1 ms and 1 ns for each byte that a rank sends.
#include "launcher/forecast/replay.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string_view>

#include "runtime/plan/step.h"
#include "tests/support/step_sentences.h"

using namespace shardrun;
using namespace shardrun::launcher;
using record::Calibration;
using record::StepProbe;

namespace {

constexpr double kLatency = 1e-3, kSecondsPerByte = 1e-9, kProduct = 1e-9, kUpdate = 1e-9;

record::Spread exactly(double value) {
  return {value, value, value};
}

StepProbe probe(int64_t batch, int64_t length, int64_t hidden, int64_t ffn, int64_t vocab) {
  StepProbe p;
  p.micro_batch = batch;
  p.sequence_length = length;
  p.hidden = hidden;
  p.heads = p.kv_heads = 4;
  p.ffn = ffn;
  p.vocab = vocab;
  const double n = static_cast<double>(batch * length), c = static_cast<double>(hidden);
  const double layer = 4.0 * c * c + 3.0 * c * static_cast<double>(ffn) + 2.0 * c;
  const double table = c * static_cast<double>(vocab);
  p.table_forward = p.table_backward = exactly(kProduct * n * c * 1e-3);
  p.layer_forward = exactly(kProduct * n * layer);
  p.layer_backward = exactly(2.0 * kProduct * n * layer);
  p.layer_backward_selective = exactly(2.5 * kProduct * n * layer);
  p.head_forward = exactly(kProduct * n * table);
  p.head_backward = exactly(2.0 * kProduct * n * table);
  return p;
}

Calibration known(int64_t machines = 2) {
  Calibration c;
  c.nodes = c.machines = 2;
  c.machines = machines;
  c.ranks_per_node = c.cpus_per_rank = 1;
  c.cpus_per_node = 1;
  c.memory_bytes_per_second = exactly(1e10);
  c.update_seconds_per_parameter = exactly(kUpdate);
  c.gemms = {{"bf16", 512, exactly(2e9)}};
  c.steps = {probe(2, 64, 128, 352, 256),    probe(2, 256, 256, 704, 4096),  probe(1, 512, 256, 1024, 1024),
             probe(4, 128, 384, 1024, 2048), probe(1, 128, 512, 1408, 8192), probe(2, 256, 512, 1408, 512)};
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"})
    for (const int64_t bytes : {2, 2000000, 8000000}) {
      const double sent = static_cast<double>(bytes) / 2.0;
      const double seconds = kLatency + kSecondsPerByte * sent;
      c.collectives.push_back({kind, "network", 2, 2, bytes, exactly(seconds)});
    }
  return c;
}

ReplayQuestion job(int64_t nodes, int64_t degree) {
  ReplayQuestion question;
  question.model = {.layers = 2, .hidden = 256, .kv_width = 256, .ffn = 704, .vocab = 1024};
  question.layout.nodes = nodes;
  question.layout.shard_degree = degree;
  question.layout.strategy = degree == 1 ? spec::Strategy::kNoShard : spec::Strategy::kFullShard;
  question.layout.micro_batch = 1;
  question.layout.sequence_length = 128;
  return question;
}

double compute_of(const ReplayQuestion& q) {
  const double n = static_cast<double>(q.layout.micro_batch * q.layout.sequence_length);
  return 3.0 * kProduct * n * (q.model.layers * q.model.layer_parameters() + q.model.table_parameters());
}

StepForecast replay(const Calibration& calibration, const ReplayQuestion& question) {
  const auto machine = MeasuredMachine::of(calibration);
  REQUIRE(machine);
  const auto step = replay_step(*machine, question);
  if (!step) FAIL(step.error().to_string());
  return *step;
}

}  // namespace

TEST_CASE("replay: a rank alone takes what its blocks and its optimizer take") {
  const ReplayQuestion question = job(1, 1);

  const StepForecast step = replay(known(), question);

  CHECK_EQ(step.seconds,
           doctest::Approx(compute_of(question) + kUpdate * question.model.parameters()).epsilon(0.01));
  CHECK_EQ(step.tokens, 128.0);
}

TEST_CASE(
    "replay: blocks of a shape that was measured take what it took, and others follow from all shapes") {
  Calibration calibration = known();
  StepProbe own = probe(1, 128, 256, 704, 1024);
  // What no fit of the other shapes says.
  own.layer_forward = own.layer_backward = exactly(1.0);
  own.head_forward = own.head_backward = exactly(10.0);
  own.layer_backward_selective = exactly(2.0);
  calibration.steps.push_back(own);
  ReplayQuestion question = job(1, 1);

  CHECK_EQ(replay(calibration, question).phases.compute, doctest::Approx(2 * 2.0 + 20.0).epsilon(1e-3));
  question.layout.checkpointing = spec::Checkpointing::kSelective;
  CHECK_EQ(replay(calibration, question).phases.compute, doctest::Approx(2 * 3.0 + 20.0).epsilon(1e-3));
  question.layout.sequence_length = 64;
  CHECK_LT(replay(calibration, question).phases.compute, 20.0);
}

TEST_CASE("replay: with a network that costs no CPU time, sharding adds what nothing hides") {
  const ReplayQuestion question = job(2, 2);
  const double compute = compute_of(question) + kUpdate * question.model.parameters() / 2.0;

  const StepForecast step = replay(known(), question);

  // The first gather, the last reduction and the norm have nothing beside them.
  const double table = kLatency + kSecondsPerByte * question.model.table_parameters();
  CHECK(step.seconds > compute + 2.0 * kLatency + table);
  const double all = step.phases.gather + step.phases.reduce;
  CHECK(step.seconds < compute + all);
}

TEST_CASE("replay: a network that is far too slow takes the time of all that is sent") {
  Calibration slow = known();
  for (auto& one : slow.collectives) {
    one.seconds = exactly(one.seconds.median * 1000.0);
  }
  const ReplayQuestion question = job(2, 2);

  const StepForecast step = replay(slow, question);

  // Forward gathers every block, backward all but the two that are still there; every block is reduced.
  const double layer = question.model.layer_parameters(), table = question.model.table_parameters();
  const double gathered = 2.0 * (2.0 * table + 2.0 * layer) + 2.0 * (table + layer),
               reduced = 4.0 * (2.0 * table + 2.0 * layer);
  const double bytes_alone = 1000.0 * kSecondsPerByte * (gathered + reduced) / 2.0;
  CHECK(step.seconds > bytes_alone);
  CHECK(step.seconds < bytes_alone + 12.0 * 1000.0 * kLatency + 0.1);
}

TEST_CASE("replay: the bytes of the smallest that was measured take their time on the links, too") {
  constexpr double kSlow = 1e-6;  // seconds a byte
  Calibration slow = known();
  slow.collectives.clear();
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"})
    for (const int64_t bytes : {400000, 2000000})
      slow.collectives.push_back(
          {kind, "network", 2, 2, bytes, exactly(kSlow * static_cast<double>(bytes) / 2.0)});
  const ReplayQuestion question = job(2, 2);

  const StepForecast step = replay(slow, question);

  CHECK_GT(step.seconds, kSlow * (step.volumes.gather + step.volumes.reduce));
}

TEST_CASE("replay: what the ranks of a node exchange leaves the links to what the nodes exchange") {
  constexpr double kSlow = 1e-6;  // seconds a byte, so that nothing else takes time
  Calibration calibration = known();
  calibration.ranks_per_node = calibration.cpus_per_node = 2;
  calibration.collectives.clear();
  for (const std::string_view among : {"node", "network", "all"})
    for (const std::string_view kind : {"all_gather", "reduce_scatter", "all_reduce"})
      for (const int64_t bytes : {2, 8000000}) {
        const double sent = static_cast<double>(bytes) / (kind == "all_reduce" ? 1.0 : 2.0);
        calibration.collectives.push_back(
            {std::string(kind), std::string(among), 2, among == "all" ? 4 : 2, bytes, exactly(kSlow * sent)});
      }
  ReplayQuestion question = job(2, 2);
  question.ranks_per_node = 2;

  const StepForecast step = replay(calibration, question);

  // Were the links shared with them, it would take node + network. A sum of replicas begins when its block's gradients are reduced,
  // two blocks at a time, and then passes beside the reductions that follow.
  const double node = kSlow * (step.volumes.gather + step.volumes.reduce),
               network = kSlow * step.volumes.replica;
  CHECK_GT(network, 0.5 * node);
  CHECK_GT(step.seconds, node + kSlow * 2.0 * question.model.table_parameters());
  CHECK_LT(step.seconds, node + 0.75 * network);
}

TEST_CASE("replay: nodes that share a machine compute at the same time, each at its share") {
  const ReplayQuestion question = job(2, 1);

  const double apart = replay(known(2), question).seconds, together = replay(known(1), question).seconds;

  const double compute = compute_of(question) + kUpdate * question.model.parameters();
  CHECK_EQ(together - apart, doctest::Approx(compute).epsilon(0.05));
}

TEST_CASE("replay: what a collective takes from computing makes the step longer by as much") {
  Calibration greedy = known();
  for (auto& one : greedy.collectives) one.cpu_seconds = 0.5 * one.seconds.median;
  const ReplayQuestion question = job(2, 2);

  const double free = replay(known(), question).seconds, taken = replay(greedy, question).seconds;

  CHECK(taken > free + 2e-3);
  CHECK(taken < free + compute_of(question));
}

TEST_CASE("replay: what a collective is slower by while its rank computes, the rank waits for") {
  const ReplayQuestion question = job(2, 2);
  const auto step_at = [&](double pace) {
    Calibration slowed = known();
    for (auto& one : slowed.collectives) {
      one.seconds = exactly(one.seconds.median * 1000.0);  // the step takes what all that is sent takes
      one.pace = pace;
    }
    return replay(slowed, question).seconds;
  };

  const double full = step_at(1.0), half = step_at(0.5), none = step_at(0.0);

  // The last layer and the head compute both ways before anything is reduced.
  CHECK(none - full > 0.6 * compute_of(question));
  CHECK(none - full < compute_of(question));
  CHECK_EQ(half - full, doctest::Approx((none - full) / 2.0).epsilon(0.01));
}

TEST_CASE(
    "replay: beyond the largest collective that was measured, what comes on top of the smallest grows with "
    "the bytes") {
  Calibration noisy = known();
  // Of the last two points the first is too late: a line through them would make large ones too short.
  for (auto& one : noisy.collectives)
    if (one.bytes == 2000000) one.seconds = exactly(one.seconds.median * 2.0);
  const auto machine = MeasuredMachine::of(noisy);
  REQUIRE(machine);
  const auto curve =
      machine->collective(CollectiveKind::kAllGather, {.ranks = 2, .nodes = 2, .nodes_at_it = 2});
  REQUIRE(curve);

  const double bytes = 64e6;
  CHECK_EQ(curve->at(bytes).wall, doctest::Approx(kLatency + kSecondsPerByte * bytes / 2.0).epsilon(1e-3));
}

TEST_CASE("replay: a collective has the pace of its size, between and beyond those that were measured") {
  Calibration calibration = known();
  std::vector<double> sizes;
  for (auto& one : calibration.collectives) {
    if (one.kind != "all_gather") continue;
    one.pace = std::min(0.9, 0.2 + 0.2 * static_cast<double>(sizes.size()));
    sizes.push_back(static_cast<double>(one.bytes));
  }
  REQUIRE_GE(sizes.size(), 2);
  const auto machine = MeasuredMachine::of(calibration);
  REQUIRE(machine);

  const auto curve =
      machine->collective(CollectiveKind::kAllGather, {.ranks = 2, .nodes = 2, .nodes_at_it = 2});

  REQUIRE(curve);
  CHECK_EQ(curve->at(sizes[0] / 2.0).pace, doctest::Approx(0.2));
  CHECK_EQ(curve->at((sizes[0] + sizes[1]) / 2.0).pace, doctest::Approx(0.3));
  CHECK_EQ(curve->at(sizes[1]).pace, doctest::Approx(0.4));
  const double last = std::min(0.9, 0.2 * static_cast<double>(sizes.size()));
  CHECK_EQ(curve->at(100.0 * sizes.back()).pace, doctest::Approx(last));
}

TEST_CASE("replay: one that nothing else is under way with takes the latency of two in a stream") {
  Calibration late = known();
  for (auto& one : late.collectives) one.seconds = exactly(1e-3);
  ReplayQuestion question = job(2, 1);
  question.model.layers = 1;

  const double with = replay(late, question).seconds;
  for (auto& one : late.collectives) one.seconds = exactly(0.0);
  const double without = replay(late, question).seconds;

  // The first block's replicas are summed when nothing is left to compute, and so is the norm.
  CHECK_EQ(with - without, doctest::Approx(2.0 * 2e-3).epsilon(0.01));
}

// What follows is written without replay_step's own code: bytes of a plan's events, by kind.
TEST_CASE(
    "replay: of 100 random jobs it times exactly the events of the plan that the sharding engine executes") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned limit) { return static_cast<int>(random() % limit); };
    ReplayQuestion question = job(2, 1 + below(2));
    const bool sharded = question.layout.shard_degree == 2;
    question.model.layers = 1 + below(5);
    question.prefetch = below(4);
    question.layout.accumulation = 1 + below(3);
    if (sharded && below(3) == 0) question.layout.strategy = spec::Strategy::kShardGradOp;
    const bool keeps = question.layout.strategy == spec::Strategy::kShardGradOp;
    const int blocks = question.model.layers + 2;
    plan::StepShape shape{.micro_steps = question.layout.accumulation,
                          .prefetch = question.prefetch,
                          .replicated = !sharded,
                          .looks_up = true};
    for (int block = 0; block < blocks; ++block) shape.visits.push_back(block);
    if (sharded) {
      // Layers take turns, or have a slot each; behind theirs is one for both ends, or one for each.
      const bool all = keeps || question.prefetch + 1 >= blocks;
      const int layers = question.model.layers,
                turns = all ? layers : std::min(question.prefetch + 1, layers);
      shape.buffers = {turns + (all ? 2 : 1), 2, shape.micro_steps > 1 ? 2 : 0, {{turns, turns + 1}}};
      for (int layer = 0; layer < layers; ++layer)
        shape.buffers.slots.push_back(turns == layers ? plan::SlotRange{layer, layer + 1}
                                                      : plan::SlotRange{0, turns});
      shape.buffers.slots.push_back({shape.buffers.gathered - 1, shape.buffers.gathered});
    }
    Volumes planned;
    for (const plan::StepEvent& event : tests::events_of(plan::StepPlan(shape))) {
      const bool table = event.block == 0, head = event.block == blocks - 1;
      const double elements =
          (table || head ? question.model.table_parameters() : question.model.layer_parameters()) +
          (head ? question.model.hidden : 0);
      if (event.kind == plan::StepEvent::Kind::kGather) planned.gather += 2.0 * elements / 2.0;
      if (event.kind == plan::StepEvent::Kind::kReduce) planned.reduce += 4.0 * elements / 2.0;
      if (event.kind == plan::StepEvent::Kind::kSumReplicas) planned.replica += 2.0 * 4.0 * elements / 2.0;
    }

    const StepForecast step = replay(known(), question);

    CAPTURE(seed);
    CHECK_EQ(step.volumes.gather, planned.gather);
    CHECK_EQ(step.volumes.reduce, planned.reduce);
    CHECK_EQ(step.volumes.replica, planned.replica);
    CHECK((planned.reduce > 0.0) == sharded);
  }
}

TEST_CASE(
    "replay: a step whose network costs nothing takes its computations, additions and update, one after "
    "another") {
  Calibration free = known();
  for (auto& one : free.collectives) one.seconds = exactly(0.0);
  for (const bool sharded : {false, true}) {
    ReplayQuestion question = job(2, sharded ? 2 : 1);
    question.layout.accumulation = 3;
    const auto machine = MeasuredMachine::of(free);
    REQUIRE(machine);
    const ModelShape& m = question.model;
    const double blocks[] = {m.table_parameters(), m.layer_parameters(), m.layer_parameters(),
                             m.table_parameters() + m.hidden};
    double expected = 0.0;
    for (const double elements : blocks) {
      expected += machine->update(elements / (sharded ? 2.0 : 1.0));
      if (sharded) expected += 2.0 * machine->add(elements / 2.0);
    }

    const StepForecast step = replay(free, question);

    const double share = machine->cpu_share(2, 1);
    CHECK_EQ(step.seconds, doctest::Approx(step.phases.compute + expected / share).epsilon(1e-12));
  }
}

TEST_CASE("replay: the update of later blocks is hidden behind the first gathers") {
  Calibration calibration = known();
  const auto machine = MeasuredMachine::of(calibration);
  REQUIRE(machine);
  ReplayQuestion question = job(2, 2);
  question.prefetch = 0;
  const double first = machine->update(question.model.table_parameters() / 2.0) / machine->cpu_share(2, 1);

  const StepForecast step = replay(calibration, question);
  calibration.update_seconds_per_parameter = exactly(1e-9 * kUpdate);
  const double without = replay(calibration, question).seconds;

  CHECK_GT(step.phases.optimizer, 2.0 * first);
  CHECK_EQ(step.seconds - without, doctest::Approx(first).epsilon(1e-3));
}

TEST_CASE("replay: ranks that share CPUs take as long as these have work, at whatever pace collectives go") {
  const ReplayQuestion question = job(2, 1);
  const double sums = static_cast<double>(question.model.layers) + 2.0, norms = 1.0;
  constexpr double kSlower = 20.0;
  const double moving =
      kSlower * ((sums + norms) * kLatency + kSecondsPerByte * 4.0 * question.model.parameters() / 2.0);
  const double work = compute_of(question) + kUpdate * question.model.parameters() + moving;
  for (const double pace : {1.0, 0.5, 0.05}) {
    Calibration busy = known(/*machines=*/1);
    for (auto& one : busy.collectives) {
      one.seconds = exactly(kSlower * one.seconds.median);
      one.cpu_seconds = one.seconds.median;  // twice what its rank's half of a CPU gives it meanwhile
      one.pace = pace;
    }

    const StepForecast step = replay(busy, question);

    CAPTURE(pace);
    CHECK_EQ(step.seconds, doctest::Approx(2.0 * work).epsilon(0.01));
  }
}

TEST_CASE("replay: the seconds, the exposed part and the bytes of eight jobs, to the digit") {
  const struct {
    int64_t degree;
    int layers, prefetch;
    int64_t accumulation;
    bool keeps;
    double slower;  // the network, by this factor
    double seconds, exposed, gather, reduce, replica;
  } jobs[] = {};
  for (const auto& expected : jobs) {
    Calibration calibration = known();
    for (auto& one : calibration.collectives) {
      one.seconds = exactly(one.seconds.median * expected.slower);
      one.cpu_seconds = 0.2 * one.seconds.median;
    }
    ReplayQuestion question = job(2, expected.degree);
    question.model.layers = expected.layers;
    question.prefetch = expected.prefetch;
    question.layout.accumulation = expected.accumulation;
    if (expected.keeps) question.layout.strategy = spec::Strategy::kShardGradOp;

    const StepForecast step = replay(calibration, question);

    CAPTURE(expected.seconds);
    CHECK_EQ(step.seconds, doctest::Approx(expected.seconds).epsilon(1e-12));
    CHECK_EQ(step.phases.exposed, doctest::Approx(expected.exposed).epsilon(1e-9));
    CHECK_EQ(step.volumes.gather, expected.gather);
    CHECK_EQ(step.volumes.reduce, expected.reduce);
    CHECK_EQ(step.volumes.replica, expected.replica);
  }
}

TEST_CASE(
    "replay: an uneven batch has the tokens of its sequences, and a last micro-step of as many as some rank "
    "has left") {
  ReplayQuestion question = job(2, 2);
  question.layout.accumulation = 3;
  question.layout.micro_batch = 2;
  const StepForecast full = replay(known(), question);
  question.layout.global_batch = 9;  // two ranks have two sequences twice; then one of them has one

  const StepForecast some = replay(known(), question);

  CHECK_EQ(full.tokens, 12.0 * 128.0);
  CHECK_EQ(some.tokens, 9.0 * 128.0);
  CHECK_EQ(some.phases.compute, doctest::Approx(full.phases.compute * 5.0 / 6.0).epsilon(0.01));
  CHECK_EQ(full.seconds - some.seconds, doctest::Approx(full.phases.compute / 6.0).epsilon(0.02));
  CHECK_EQ(some.volumes.gather, full.volumes.gather);
}

TEST_CASE("replay: gradients in bf16 are half the bytes of fp32's, over shards and over replicas") {
  for (ReplayQuestion question : {job(2, 2), job(2, 1)}) {
    const StepForecast wide = replay(known(), question);

    question.reduce_bytes = 2;
    const StepForecast narrow = replay(known(), question);

    CHECK_EQ(2.0 * narrow.volumes.reduce, wide.volumes.reduce);
    CHECK_EQ(2.0 * narrow.volumes.replica, wide.volumes.replica);
    CHECK_EQ(narrow.volumes.gather, wide.volumes.gather);
    CHECK_LT(narrow.seconds, wide.seconds);
  }
}

TEST_CASE("replay: layers that are gathered together save latencies, and no byte of gradients") {
  ReplayQuestion question = job(2, 2);
  question.model.layers = 8;
  const StepForecast alone = replay(known(), question);

  question.wrap = 4;
  const StepForecast together = replay(known(), question);

  CHECK_LT(together.volumes.gather, alone.volumes.gather);  // more layers are there when backward begins
  CHECK_EQ(together.volumes.reduce, doctest::Approx(alone.volumes.reduce));
  CHECK_EQ(together.phases.compute, doctest::Approx(alone.phases.compute));
  CHECK_LT(together.phases.gather, alone.phases.gather);
  CHECK_LT(together.phases.reduce, alone.phases.reduce);
}

TEST_CASE("replay: what was not measured is named, not guessed") {
  ReplayQuestion tensor = job(2, 1);
  tensor.layout.tensor_parallel = 2;
  Calibration silent = known();
  silent.collectives.clear();
  const auto machine = MeasuredMachine::of(known()), lonely = MeasuredMachine::of(silent);
  REQUIRE(machine);
  REQUIRE(lonely);

  const auto cut = replay_step(*machine, tensor), spread = replay_step(*lonely, job(2, 2));

  REQUIRE_FALSE(cut);
  CHECK_EQ(cut.error().message(), "the calibration has no measurements of tensor_parallel");
  REQUIRE_FALSE(spread);
  CHECK(spread.error().message().find("were not measured") != std::string::npos);
}
