#include <doctest/doctest.h>

#include <cmath>

#include "launcher/forecast/certainty.h"
#include "launcher/forecast/failures.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

// Llama-2 7B on machines of eight A100.
Run run_on(int64_t nodes, int sequence_length = 4096) {
  Run run;
  run.model = {.layers = 32, .hidden = 4096, .kv_width = 4096, .ffn = 11008, .vocab = 32000};
  run.traits = traits(Stack::kFms);
  run.layout.nodes = nodes;
  run.layout.shard_degree = 8 * nodes;
  run.layout.micro_batch = 2;
  run.layout.sequence_length = sequence_length;
  return run;
}

double rate_of(const Run& run, const Constants& constants) {
  return forecast_step(run.machine, run.model, run.layout, run.traits, constants).tokens_per_second();
}

double corrected(const Belief& belief, const Run& run) {
  return rate_of(run, belief.constants()) * belief.estimate(run).factor;
}

Belief anchored(double factor, int64_t nodes) {
  const Run run = run_on(nodes);
  return Belief(fitted_constants(), {{run, factor * rate_of(run, fitted_constants())}});
}

}  // namespace

TEST_CASE(
    "certainty: without a measured run the constants are the published ones, and the interval holds both "
    "sides") {
  const Belief belief(fitted_constants(), {});
  const Estimate estimate = belief.estimate(run_on(4));

  CHECK(rate_of(run_on(4), belief.constants()) == doctest::Approx(rate_of(run_on(4), fitted_constants())));
  CHECK(estimate.factor == doctest::Approx(1.0));
  CHECK(estimate.interval().low < 0.95);
  CHECK(estimate.interval().high > 1.05);
  CHECK(estimate.interval().low * estimate.interval().high == doctest::Approx(1.0));
}

TEST_CASE(
    "certainty: a measured run is predicted as it was, within its noise, and is surer than one unlike it") {
  const Belief belief = anchored(0.8, 4);
  const double there = corrected(belief, run_on(4)) / rate_of(run_on(4), fitted_constants());

  CHECK(there == doctest::Approx(0.8).epsilon(0.03));
  CHECK(belief.estimate(run_on(4)).deviation < belief.estimate(run_on(64)).deviation);
  CHECK(belief.estimate(run_on(64)).deviation <
        Belief(fitted_constants(), {}).estimate(run_on(64)).deviation);
}

TEST_CASE("certainty: what one run teaches moves runs of other sizes the same way, and less") {
  const Belief slow = anchored(0.8, 4), fast = anchored(1.2, 4);
  const auto moved = [](const Belief& belief, const Run& run) {
    return corrected(belief, run) / rate_of(run, fitted_constants());
  };

  CHECK(moved(slow, run_on(64)) < 0.9);
  CHECK(moved(slow, run_on(64)) > moved(slow, run_on(4)) - 0.02);
  CHECK(moved(fast, run_on(64)) > 1.1);
}

TEST_CASE("certainty: of several measured runs each counts") {
  const Run small = run_on(2), large = run_on(32);
  const Constants& published = fitted_constants();
  const Belief both(published,
                    {{small, 0.9 * rate_of(small, published)}, {large, 0.7 * rate_of(large, published)}});

  CHECK(corrected(both, small) / rate_of(small, published) == doctest::Approx(0.9).epsilon(0.04));
  CHECK(corrected(both, large) / rate_of(large, published) == doctest::Approx(0.7).epsilon(0.04));
}

TEST_CASE("certainty: two runs are surer against each other than either is alone") {
  const Belief belief(fitted_constants(), {});
  const double ratio = belief.ratio_deviation(run_on(4), run_on(8));

  CHECK(ratio > 0.0);
  CHECK(ratio < belief.estimate(run_on(4)).deviation);
  CHECK(belief.ratio_deviation(run_on(4), run_on(4)) == doctest::Approx(0.0));
}

TEST_CASE("certainty: what no published run shows is said, and widens the interval") {
  const Belief belief(fitted_constants(), {});
  Run unknown = run_on(4), far = run_on(4096);
  unknown.machine.name = "p6-b200.48xlarge";
  unknown.machine.published = false;
  unknown.machine.generation = Generation::kHopper;
  Run older = unknown;
  older.machine.name = "g5.48xlarge";
  older.machine.generation = Generation::kAmpere;

  CHECK(beyond_published(run_on(4)).empty());
  REQUIRE_EQ(beyond_published(unknown).size(), 1);
  CHECK_EQ(beyond_published(unknown).front(),
           "no published run is on p6-b200.48xlarge: its accelerators are taken for as good as Hopper's");
  REQUIRE_EQ(beyond_published(older).size(), 1);
  CHECK_EQ(beyond_published(older).front(),
           "no published run is on g5.48xlarge: its accelerators are taken for as good as Ampere's");
  REQUIRE_EQ(beyond_published(far).size(), 1);
  CHECK_EQ(beyond_published(far).front(), "published runs end at 2048 accelerators");
  CHECK(belief.estimate(unknown).deviation > 0.2);
}

// 54 days · 24 h · 2048 nodes / 419 = 6334.47 h for a node; Young's interval of 100 nodes and a save of 10 s is
// sqrt(2 · 10 · 63.3447 · 3600) = 2135.62 s, and Daly's 2136.0 · (1 + …) - 10.
TEST_CASE("failures: the interval between checkpoints is Daly's, near Young's") {
  const Saving saving = best_saving(100, 5.0, 10.0);

  CHECK(saving.hours_between_failures == doctest::Approx(63.3447).epsilon(1e-4));
  CHECK(std::abs(static_cast<double>(saving.every_steps) * 5.0 - 2135.6) < 15.0);
  CHECK(saving.lost_share == doctest::Approx(10.0 / 2145.0 + 2145.0 / (2 * 63.3447 * 3600)).epsilon(0.02));
}

TEST_CASE("failures: the interval that is chosen loses no more than half or twice of it") {
  const auto lost = [](double interval) {
    const double between = 63.3447 * 3600.0;
    return 10.0 / (interval + 10.0) + (interval + 10.0) / (2.0 * between);
  };
  const Saving saving = best_saving(100, 5.0, 10.0);
  const double interval = static_cast<double>(saving.every_steps) * 5.0;
  CHECK(lost(interval) == doctest::Approx(saving.lost_share).epsilon(1e-4));
  CHECK(lost(interval) < lost(interval / 2.0));
  CHECK(lost(interval) < lost(interval * 2.0));
  CHECK_EQ(best_saving(1'000'000, 60.0, 0.001).every_steps, 1);
}

namespace {

// A run on `nodes` of a calibrated machine whose rate was so many times what was replayed.
Miss missed(int64_t nodes, double ratio) {
  return {run_on(nodes), std::log(ratio)};
}

}  // namespace

TEST_CASE(
    "certainty: what was replayed is moved by runs that were measured there, and the surer the more alike "
    "they are") {
  const Estimate before = estimate_replayed(run_on(4), {});
  const Estimate near = estimate_replayed(run_on(4), {missed(4, 0.9)});
  const Estimate far = estimate_replayed(run_on(4), {missed(64, 0.9)});

  CHECK(before.factor == 1.0);
  CHECK(near.factor == doctest::Approx(0.9).epsilon(0.02));
  CHECK(far.factor > near.factor);
  CHECK(far.factor < 1.0);
  CHECK(near.deviation < far.deviation);
  CHECK(far.deviation < before.deviation);
}

TEST_CASE("certainty: two runs of one kind that differ are met in the middle") {
  CHECK(estimate_replayed(run_on(4), {missed(4, 0.9), missed(4, 1.1)}).factor ==
        doctest::Approx(1.0).epsilon(0.01));
}
