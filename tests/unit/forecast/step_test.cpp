#include <doctest/doctest.h>

#include "launcher/forecast/collective.h"
#include "launcher/forecast/memory.h"
#include "launcher/forecast/step.h"

using namespace shardrun;
using namespace shardrun::launcher;

namespace {

constexpr ModelShape k7B{.layers = 32, .hidden = 4096, .kv_width = 4096, .ffn = 11008, .vocab = 32000};

Layout on(int64_t nodes, int64_t shard_degree) {
  Layout layout;
  layout.nodes = nodes;
  layout.shard_degree = shard_degree;
  layout.checkpointing = contract::Checkpointing::kFull;
  return layout;
}

StepForecast forecast(const Layout& layout, Stack stack = Stack::kFms) {
  return forecast_step(Machine{}, k7B, layout, traits(stack), fitted_constants());
}

}  // namespace

TEST_CASE("shape: Llama-2 7B has the parameters of its paper") {
  CHECK(k7B.parameters() == doctest::Approx(6.738e9).epsilon(0.001));
}

TEST_CASE("collective: a gather takes the slower of its two links, and the hops") {
  const Links links{.link_rate = 100e9, .network_rate = 50e9, .hierarchical = true};
  const Group group{.ranks = 16, .nodes = 2, .per_node = 8, .beside = 1};

  // Half of 10 GB comes over 50 GB/s; 8 µs, 7 hops inside and 1 between.
  CHECK(gather_seconds(10e9, group, links) == doctest::Approx(0.1 + 8e-6 + 7 * 3e-6 + 17e-6));
  CHECK(gather_volume(16.0, group) == doctest::Approx(15.0));
  CHECK(gather_seconds(10e9, Group{}, links) == 0.0);
}

TEST_CASE("collective: a flat ring's latency grows with ranks, by node it grows with nodes") {
  const Group group{.ranks = 1024, .nodes = 128, .per_node = 8, .beside = 1};
  const Links ring{.link_rate = 100e9, .network_rate = 50e9, .hierarchical = false};
  const Links by_node{.link_rate = 100e9, .network_rate = 50e9, .hierarchical = true};

  CHECK(gather_seconds(1.0, group, ring) - gather_seconds(1.0, group, by_node) ==
        doctest::Approx((896 - 7) * 3e-6));
}

TEST_CASE("step: a network that is never waited for hides every gather but the first and the last") {
  Machine machine;
  machine.network_rate = machine.link_rate = 1e15;
  Constants constants = fitted_constants();
  constants.held = 0.0;

  const StepForecast step = forecast_step(machine, k7B, on(16, 128), traits(Stack::kSmp), constants);

  CHECK(step.phases.exposed < 0.002 * step.seconds);
}

TEST_CASE("step: a network as slow as it can be is all that a step waits for") {
  Machine machine;
  machine.network_rate = 1e8;

  const StepForecast step = forecast_step(machine, k7B, on(16, 128), traits(Stack::kSmp), fitted_constants());

  CHECK(step.seconds > step.phases.gather + step.phases.reduce);
  CHECK(step.seconds < 1.1 * (step.phases.gather + step.phases.reduce));
}

TEST_CASE("step: hybrid sharding beats full sharding where rings are long") {
  CHECK(forecast(on(128, 16)).seconds < forecast(on(128, 1024)).seconds);
}

TEST_CASE("step: accumulation costs gathers again and saves nothing else") {
  Layout once = on(16, 128), twice = once;
  once.micro_batch = 2;
  twice.accumulation = 2;

  CHECK(forecast(twice).tokens == forecast(once).tokens);
  CHECK(forecast(twice).volumes.gather == 2.0 * forecast(once).volumes.gather);
  CHECK(forecast(twice).seconds > forecast(once).seconds);
}

TEST_CASE("step: checkpointing a whole layer costs its forward again") {
  Layout none = on(1, 8), full = none;
  none.checkpointing = contract::Checkpointing::kNone;

  const double ratio = forecast(full).phases.compute / forecast(none).phases.compute;

  CHECK(ratio > 1.25);
  CHECK(ratio < 4.0 / 3.0);
}

TEST_CASE("memory: a shard of twice the ranks holds half of the state") {
  const auto few = forecast_memory(k7B, on(16, 32), traits(Stack::kSmp));
  const auto many = forecast_memory(k7B, on(16, 64), traits(Stack::kSmp));

  CHECK(few.state == doctest::Approx(2.0 * many.state));
  CHECK(few.activations == many.activations);
}
