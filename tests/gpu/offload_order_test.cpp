// What an order of the GPU's work could spoil where data wait on the host, and what memory that takes on
// the emulated GPU.
#include <doctest/doctest.h>

#include "runtime/trainer/kernels/cuda/backend.h"
#include "runtime/trainer/train/memory_plan.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/emulation/settings.h"
#include "tests/fakes/thread_world.h"
#include "tests/gpu/training.h"

namespace gpu_training {
namespace {

constexpr kernels::DType kBf16 = kernels::DType::kBf16;

}  // namespace

TEST_CASE("offload on a GPU: every order of streams, blocks and warps gives the bits of a run without") {
  const tests::Folder folder;
  emulation::set_seed(0);
  Run run{.compute = kBf16, .steps = 2, .layers = 5};
  const auto plain = train(folder, run);
  Run shared = run;
  shared.ranks = 2;
  const auto shared_plain = train(folder, shared);
  run.moments_on_host = run.activations_on_host = true;
  shared.moments_on_host = shared.activations_on_host = true;
  for (const uint64_t seed : {0, 1, 7, 8, 9}) {
    emulation::set_seed(seed);
    CAPTURE(seed);
    CHECK_EQ(train(folder, run), plain);
    CHECK_EQ(train(folder, shared), shared_plain);
  }
  emulation::set_seed(0);
}

TEST_CASE(
    "offload on a GPU: every order of streams, blocks and warps gives a BERT the bits of a run without") {
  const tests::Folder folder;
  emulation::set_seed(0);
  Run run{.compute = kBf16, .steps = 2, .bert = true, .layers = 5};
  const auto plain = train(folder, run);
  run.activations_on_host = true;
  for (const uint64_t seed : {0, 1, 7, 8, 9}) {
    emulation::set_seed(seed);
    CAPTURE(seed);
    CHECK_EQ(train(folder, run), plain);
  }
  emulation::set_seed(0);
}

TEST_CASE(
    "offload on a GPU: a session holds the bytes of its plan, of the GPU and of the host's pinned memory") {
  const tests::Folder folder;
  struct Kind {
    bool bert;
    model::Checkpointing level;
  };
  for (const Kind& kind : {Kind{false, model::Checkpointing::kNone}, Kind{false, model::Checkpointing::kFull},
                           Kind{true, model::Checkpointing::kFull}}) {
    for (const bool moments : {false, true}) {
      for (const bool activations : {false, true}) {
        const Run run{.compute = kBf16,
                      .checkpointing = kind.level,
                      .bert = kind.bert,
                      .layers = 5,
                      .moments_on_host = moments,
                      .activations_on_host = activations};
        auto device = kernels::cuda::Device::create({});
        REQUIRE(device);
        auto backend = kernels::cuda::make_backend(std::move(device).value());
        REQUIRE(backend);
        fakes::ThreadWorld alone(1, {.channels = 3});
        const auto before = emulation::held_memory();
        const auto channel = [&](int number) { return alone.communicator(0, number); };
        const auto world = channel(0), gather = channel(1), reduce = channel(2);
        const auto options = options_of(folder, run);
        const auto session =
            train::Session::create(options, {world.get(), gather.get(), reduce.get()}, **backend);
        REQUIRE(session);
        const auto held = emulation::held_memory();
        const plan::MemoryPlan planned = train::plan_model(options, 1, 1, 1).memory;
        constexpr int64_t kSums = 32;
        CHECK_EQ(held.gpu - before.gpu, planned.gpu_total() - planned.workspace - planned.context + kSums);
        CHECK_EQ(held.pinned - before.pinned, planned.offloaded);
        CHECK_EQ(planned.offloaded > 0, moments || activations);
        CHECK_EQ(planned.compute_copy == 0, moments);
      }
    }
  }
}

}  // namespace gpu_training
