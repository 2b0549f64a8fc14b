// What memory training a BERT takes on the emulated GPU, which counts it.
#include <doctest/doctest.h>

#include "runtime/trainer/kernels/cuda/backend.h"
#include "runtime/trainer/train/memory_plan.h"
#include "tests/emulation/emulated_gpu.h"
#include "tests/fakes/thread_world.h"
#include "tests/gpu/training.h"

namespace gpu_training {
namespace {

// Returns the bytes of the emulated GPU that are in use after a step of a session with these options.
int64_t bytes_of_session(const train::SessionOptions& options) {
  auto device = kernels::cuda::Device::create({});
  REQUIRE(device);
  auto backend = kernels::cuda::make_backend(std::move(device).value());
  REQUIRE(backend);
  fakes::ThreadWorld alone(1, {.channels = 3});
  const auto world = alone.communicator(0, 0), gather = alone.communicator(0, 1),
             reduce = alone.communicator(0, 2);
  const int64_t before = emulation::held_memory().gpu;
  const auto session = train::Session::create(options, {world.get(), gather.get(), reduce.get()}, **backend);
  REQUIRE(session);
  REQUIRE((*session)->start());
  REQUIRE((*session)->step(/*stop_requested=*/false));
  return emulation::held_memory().gpu - before;
}

}  // namespace

TEST_CASE("training a BERT on a GPU: a session holds the bytes of its plan, and no more once it trains") {
  const tests::Folder folder;
  for (const bool lamb : {false, true}) {
    for (const auto compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
      for (const auto level :
           {model::Checkpointing::kNone, model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
        train::SessionOptions options;
        options.compute = compute;
        options.device = kernels::DeviceKind::kGpu;
        options.checkpointing = level;
        options.micro_batch = 2;
        options.gradient_accumulation = 2;
        options.schedule = {optim::Shape::kConstant, 1e-3, 0.0, 0, 1};
        if (lamb) options.optimizer.kind = optim::LambOptions{};
        take_bert(folder, options);
        const plan::MemoryPlan plan = train::plan_model(options, 1, 1, 1).memory;
        // The workspace belongs to the device and is there before the session; what a step adds up and LAMB's rates
        // are in no plan.
        const int64_t planned = plan.model_state() + plan.gathered + plan.activations;
        const int64_t unplanned = bytes_of_session(options) - planned;
        CAPTURE(lamb);
        CAPTURE(unplanned);
        CHECK_GE(unplanned, 0);
        CHECK_LE(unplanned, lamb ? 4096 : 256);
      }
    }
  }
}

}  // namespace gpu_training
