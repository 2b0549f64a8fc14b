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
  layout.checkpointing = spec::Checkpointing::kFull;
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

  // Half of 10 GB comes over 50 GB/s; to that come 8 µs, 7 hops inside and 1 between.
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

TEST_CASE(
    "step: an uneven batch has the tokens of its sequences, and a last micro-step of as many as some rank "
    "has left") {
  Layout full = on(16, 128);
  full.accumulation = 2;
  full.micro_batch = 2;
  Layout uneven = full, same = full;
  uneven.global_batch = 512 - 200;  // 128 ranks have two sequences and then one, of which 72 have none
  same.global_batch = 512;
  const StepForecast all = forecast(full), some = forecast(uneven);

  CHECK_EQ(all.tokens, 512.0 * 4096.0);
  CHECK_EQ(some.tokens, 312.0 * 4096.0);
  CHECK_EQ(some.phases.compute, doctest::Approx(0.75 * all.phases.compute).epsilon(0.01));
  CHECK_EQ(some.phases.gather, all.phases.gather);
  CHECK_LT(some.seconds, all.seconds);
  CHECK_EQ(forecast(same).seconds, all.seconds);
  CHECK_EQ(forecast(same).tokens, all.tokens);
}

TEST_CASE("step: checkpointing a whole layer costs its forward again") {
  Layout none = on(1, 8), full = none;
  none.checkpointing = spec::Checkpointing::kNone;

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

TEST_CASE("memory: selective checkpointing that computes no product again keeps whole layers") {
  Traits keeps = traits(Stack::kMegatron);
  keeps.selective = 0.0;
  Layout layout = on(16, 32), none = layout;
  layout.checkpointing = spec::Checkpointing::kSelective;
  none.checkpointing = spec::Checkpointing::kNone;
  const auto of = [](const Layout& one, const Traits& stack) {
    return forecast_memory(k7B, one, stack, 8).activations;
  };

  CHECK(of(layout, traits(Stack::kMegatron)) < 0.5 * of(none, keeps));
  CHECK(of(layout, keeps) >= of(none, keeps));
}

TEST_CASE("memory: fused kernels keep less for backward, and states in bf16 take half") {
  Layout layout = on(16, 32);
  layout.checkpointing = spec::Checkpointing::kNone;
  Traits fused = traits(Stack::kSmp);
  fused.fused = true;

  CHECK(forecast_memory(k7B, layout, fused, 8).activations <
        0.7 * forecast_memory(k7B, layout, traits(Stack::kSmp), 8).activations);
  CHECK(forecast_memory(k7B, on(1, 8), traits(Stack::kLlmq), 8).state ==
        doctest::Approx(0.5 * forecast_memory(k7B, on(1, 8), traits(Stack::kSmp), 8).state));
}

TEST_CASE("memory: whole weights leave masters and moments sharded where the stack does so") {
  Layout whole = on(1, 1);
  whole.strategy = spec::Strategy::kNoShard;

  const auto memory = forecast_memory(k7B, whole, traits(Stack::kLlmc), 8);

  CHECK(memory.state == doctest::Approx(k7B.parameters() * (4.0 + 12.0 / 8.0)));
  CHECK(memory.gathered == 0.0);
}

TEST_CASE("memory: offload leaves two layers' inputs, whatever else is kept") {
  Layout kept = on(16, 32), moved = kept;
  moved.activation_offload = true;
  const double input = 2.0 * 4096 * 4096;

  for (const auto kind : {spec::Checkpointing::kFull, spec::Checkpointing::kSelective}) {
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
  layout.strategy = spec::Strategy::kNoShard;
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
  layout.checkpointing = spec::Checkpointing::kNone;
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

namespace {

// Forecasts with kernels at half of their peaks and memory at 0.8 of 4e12 bytes/s; nothing else is counted.
StepForecast fp8_step(bool fp8, bool delayed, int64_t nodes = 1) {
  constexpr ModelShape kModel{.layers = 10, .hidden = 1024, .kv_width = 1024, .ffn = 4096, .vocab = 32768};
  Machine machine;
  machine.generation = Generation::kHopper;
  machine.peak = 1e15;
  machine.fp8_peak = 2e15;
  machine.memory_rate = 4e12;
  Constants constants;
  constants.gemm[1] = 0.5;
  constants.narrow = 0.0;
  constants.fp8 = 0.8;
  Traits stack;
  stack.delayed_scales = delayed;
  Layout layout = on(nodes, 8 * nodes);
  layout.checkpointing = spec::Checkpointing::kNone;
  layout.micro_batch = 8;
  layout.sequence_length = 1024;
  layout.fp8 = fp8;
  return forecast_step(machine, kModel, layout, stack, constants);
}

}  // namespace

// A layer and 8192 tokens have 16,779,264 parameters, 8192 · (3 · 1024 + 4096) = 58,720,256 values that go into
// products, and 8192 · (5 · 1024 + 2 · 4096) = 109,051,904 gradients of what comes out.
//   products  3 · 2 · 16,779,264 · 8192 / 0.5e15 = 1649.469 us, in fp8 at 0.8 of twice that rate 1030.918 us
//   forward   3 bytes of inputs and weights / 3.2e12 = 70.781 us
//   backward  4 bytes of gradients, 3 of inputs and weights / 3.2e12 = 207.096 us
TEST_CASE("step: fp8 with delayed scales saves the products' time and costs a pass over each factor") {
  const double bf16 = fp8_step(false, true).phases.compute, fp8 = fp8_step(true, true).phases.compute;
  CHECK(bf16 - fp8 == doctest::Approx(10 * (1649.468768e-6 - 1030.917980e-6 - 70.7808e-6 - 207.09568e-6)));
  CHECK(fp8_step(false, true).phases.compute == fp8_step(false, false).phases.compute);
  // Inputs are kept from forward, as other stacks do it: that takes 5 bytes of inputs, then 7 of gradients and 2 of
  // inputs that are turned.
  CHECK(bf16 - fp8_step(true, false).phases.compute ==
        doctest::Approx(
            10 * (1649.468768e-6 - 1030.917980e-6 - 7 * 58'720'256 / 3.2e12 - 7 * 109'051'904 / 3.2e12)));
}

TEST_CASE("step: with delayed scales layers are gathered in bf16 and quantized where they are used") {
  CHECK(fp8_step(true, true, 4).volumes.gather == fp8_step(false, true, 4).volumes.gather);
  CHECK(fp8_step(true, false, 4).volumes.gather < fp8_step(false, true, 4).volumes.gather);
}

// One layer holds, while it runs: an input (8192 · 4096 bytes), a gradient twice (8192 · 8192 each), a
// weight (1024 · 8192).
TEST_CASE("memory: fp8 with delayed scales holds one layer's factors, a byte each") {
  constexpr ModelShape kModel{.layers = 10, .hidden = 1024, .kv_width = 1024, .ffn = 4096, .vocab = 32768};
  Layout bf16 = on(1, 8);
  bf16.micro_batch = 8;
  bf16.sequence_length = 1024;
  Layout fp8 = bf16;
  fp8.fp8 = true;
  Traits stack;
  stack.delayed_scales = true;
  const auto held = [&](const Layout& layout) {
    return forecast_memory(kModel, layout, stack, 8).activations;
  };
  CHECK(held(fp8) - held(bf16) == 33'554'432.0 + 2 * 67'108'864.0 + 8'388'608.0);
  fp8.tensor_parallel = bf16.tensor_parallel = 2;
  CHECK(held(fp8) - held(bf16) == (33'554'432.0 + 2 * 67'108'864.0 + 8'388'608.0) / 2);
}

TEST_CASE("shape: of a token's FLOPs the linear layers of blocks are what is neither scores nor head") {
  constexpr ModelShape kModel{.layers = 10, .hidden = 1024, .kv_width = 1024, .ffn = 4096, .vocab = 32768};
  CHECK(kModel.linear_flops_per_token() == 6.0 * 10 * 16 * 1024 * 1024);
}

// Four stages have a quarter of the layers each; of eight micro-batches a stage waits for three, and with chunks for a share of
// them.
TEST_CASE("step: a pipeline waits for its first and last micro-batches, less with several chunks a stage") {
  constexpr ModelShape kModel{.layers = 32, .hidden = 4096, .kv_width = 4096, .ffn = 16384, .vocab = 32000};
  const auto at = [&](int pipeline, int chunks) {
    Layout layout = on(1, 1);
    layout.given.pipeline = pipeline;
    layout.given.pipeline_chunks = chunks;
    layout.accumulation = 8;
    return forecast_step(Machine{}, kModel, layout, traits(Stack::kMegatron), fitted_constants());
  };
  const StepForecast one = at(1, 1), four = at(4, 1), chunked = at(4, 3);

  CHECK(one.phases.bubble == 0.0);
  CHECK(four.tokens == doctest::Approx(one.tokens / 4.0));
  CHECK(chunked.phases.bubble == doctest::Approx(four.phases.bubble / 3.0));
  CHECK(four.phases.bubble / four.phases.compute == doctest::Approx(3.0 / 8.0).epsilon(0.1));
  CHECK(four.tokens_per_second() < chunked.tokens_per_second());
}

TEST_CASE("step: ranks that share a sequence compute a part of it, and make the batch smaller") {
  constexpr ModelShape kModel{.layers = 32, .hidden = 4096, .kv_width = 1024, .ffn = 14336, .vocab = 128256};
  Layout whole = on(1, 1), shared = on(1, 1);
  whole.sequence_length = shared.sequence_length = 8192;
  shared.given.context_parallel = 2;
  const auto at = [&](const Layout& layout) {
    return forecast_step(Machine{}, kModel, layout, traits(Stack::kMegatron), fitted_constants());
  };

  CHECK(at(shared).tokens == doctest::Approx(at(whole).tokens / 2.0));
  CHECK(at(shared).seconds < at(whole).seconds);
  CHECK(at(shared).seconds > at(whole).seconds / 2.0);
}
