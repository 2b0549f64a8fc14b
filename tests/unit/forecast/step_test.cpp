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
  Traits stack = traits(Stack::kSmp);
  stack.held = 0.0;

  const StepForecast step = forecast_step(machine, k7B, on(16, 128), stack, fitted_constants());

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
  const auto few = forecast_memory(k7B, on(16, 32), traits(Stack::kSmp), 8);
  const auto many = forecast_memory(k7B, on(16, 64), traits(Stack::kSmp), 8);

  CHECK(few.state == doctest::Approx(2.0 * many.state));
  CHECK(few.activations == many.activations);
}

TEST_CASE("memory: fused kernels keep less for backward, and states in bf16 take half") {
  Layout layout = on(16, 32);
  layout.checkpointing = contract::Checkpointing::kNone;
  Traits fused = traits(Stack::kSmp);
  fused.fused = true;

  CHECK(forecast_memory(k7B, layout, fused, 8).activations <
        0.7 * forecast_memory(k7B, layout, traits(Stack::kSmp), 8).activations);
  CHECK(forecast_memory(k7B, on(1, 8), traits(Stack::kLlmq), 8).state ==
        doctest::Approx(0.5 * forecast_memory(k7B, on(1, 8), traits(Stack::kSmp), 8).state));
}

TEST_CASE("memory: whole weights leave masters and moments sharded where the stack does so") {
  Layout whole = on(1, 1);
  whole.strategy = contract::Strategy::kNoShard;

  const auto memory = forecast_memory(k7B, whole, traits(Stack::kLlmc), 8);

  CHECK(memory.state == doctest::Approx(k7B.parameters() * (4.0 + 12.0 / 8.0)));
  CHECK(memory.gathered == 0.0);
}

TEST_CASE("memory: offload leaves two layers' inputs, whatever else is kept") {
  Layout kept = on(16, 32), moved = kept;
  moved.activation_offload = true;
  const double input = 2.0 * 4096 * 4096;

  for (const auto kind : {contract::Checkpointing::kFull, contract::Checkpointing::kSelective}) {
    kept.checkpointing = moved.checkpointing = kind;
    const double saved = forecast_memory(k7B, kept, traits(Stack::kSmp), 8).activations -
                         forecast_memory(k7B, moved, traits(Stack::kSmp), 8).activations;
    CHECK(saved == doctest::Approx((32 - 2) * input));
  }
}

TEST_CASE(
    "step: moments that stream through an accelerator take half the time, and no copy of the weights is "
    "held") {
  Machine one{.per_node = 1};
  Layout layout = on(1, 1);
  layout.strategy = contract::Strategy::kNoShard;
  layout.optimizer_offload = true;
  const Traits waits = traits(Stack::kFms);
  Traits streams = waits;
  streams.streams_moments = true;
  const auto step = [&](const Traits& how) {
    return forecast_step(one, k7B, layout, how, fitted_constants());
  };
  const double way = 16.0 * k7B.parameters() / one.host_rate;

  CHECK(step(streams).phases.optimizer == doctest::Approx(way / 2.0));
  CHECK(step(waits).phases.optimizer > way);
  CHECK(step(streams).phases.compute > step(waits).phases.compute);
  CHECK(step(streams).volumes.offload == doctest::Approx(16.0 * k7B.parameters()));
  const auto held = [&](const Traits& how) { return forecast_memory(k7B, layout, how, 1).gathered; };
  const double blocks = 2.0 * k7B.layer_parameters() + k7B.table_parameters();
  CHECK(held(waits) - held(streams) == doctest::Approx(2.0 * (k7B.parameters() - blocks)));
}

TEST_CASE("step: layers in fp8 are gathered as such, tables are not") {
  Layout bf16 = on(16, 128), fp8 = bf16;
  fp8.fp8 = true;
  const double layers = 32 * k7B.layer_parameters();

  CHECK(forecast(bf16).volumes.gather - forecast(fp8).volumes.gather ==
        doctest::Approx(2.0 * gather_volume(layers, Group{.ranks = 128})));
  CHECK(forecast(fp8).volumes.reduce == forecast(bf16).volumes.reduce);
}

TEST_CASE("step: flat buffers cost passes over the parameters, more of them where gradients are cast") {
  Traits in_place = traits(Stack::kFms), flat = in_place, cast = in_place;
  in_place.copies = false;
  cast.reduce_bytes = 4;
  const auto compute = [](const Traits& stack) {
    return forecast_step(Machine{}, k7B, on(1, 8), stack, fitted_constants()).phases.compute;
  };

  const double copied = compute(flat) - compute(in_place);
  CHECK(copied > 0.0);
  CHECK(compute(cast) - compute(in_place) == doctest::Approx(copied * 14.0 / 8.0));
}

TEST_CASE("step: asynchronous tensor groups hide what forward exchanges, not what backward does") {
  Layout layout = on(16, 16);
  layout.tensor_parallel = 8;
  layout.checkpointing = contract::Checkpointing::kNone;
  Traits waits = traits(Stack::kTitan), starts = waits;
  starts.asynchronous_tensor = true;
  const auto step = [&](const Traits& stack) {
    return forecast_step(Machine{}, k7B, layout, stack, fitted_constants());
  };

  const double hidden = step(waits).phases.compute - step(starts).phases.compute;
  CHECK(hidden == doctest::Approx(0.5 * step(waits).phases.tensor * 7.0 / 8.0));
}

TEST_CASE("step: fp8 gains less where matrices are small, and nothing in the head") {
  const ModelShape small{
      .layers = 24, .hidden = 896, .kv_width = 128, .ffn = 4864, .vocab = 151936, .tied = true};
  Machine machine;
  machine.generation = Generation::kHopper;
  machine.peak = 989e12;
  machine.fp8_peak = 1979e12;
  const auto gain = [&](const ModelShape& model) {
    Layout bf16 = on(1, 1), fp8 = bf16;
    fp8.fp8 = true;
    return forecast_step(machine, model, bf16, traits(Stack::kLlmq), fitted_constants()).phases.compute /
           forecast_step(machine, model, fp8, traits(Stack::kLlmq), fitted_constants()).phases.compute;
  };

  CHECK(gain(small) > 1.0);
  CHECK(gain(small) < 1.2);
  CHECK(gain(k7B) > 1.25);
}
