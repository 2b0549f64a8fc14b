// State and activations that wait on the host: they change no bit, whatever else a run does.
#include <doctest/doctest.h>

#include "runtime/trainer/kernels/cuda/backend.h"
#include "tests/gpu/training.h"

namespace gpu_training {
namespace {

constexpr kernels::DType kFp32 = kernels::DType::kFp32, kBf16 = kernels::DType::kBf16;

// Returns a run of five layers: three of them go to the host, and the last two never do.
Run run_of(kernels::DType compute, int ranks = 1) {
  return {.compute = compute, .steps = 4, .ranks = ranks, .layers = 5};
}

Run offloaded(Run run) {
  run.moments_on_host = run.activations_on_host = true;
  return run;
}

}  // namespace

TEST_CASE("offload on a GPU: moments on the host change no bit, in fp32, and in bf16 without a copy of it") {
  const tests::Folder folder;
  for (const auto compute : {kFp32, kBf16}) {
    Run run = run_of(compute);
    const auto plain = train(folder, run);
    run.moments_on_host = true;
    CHECK_EQ(train(folder, run), plain);
  }
}

TEST_CASE("offload on a GPU: a BERT's moments on the host change no bit") {
  const tests::Folder folder;
  Run run{.compute = kBf16, .steps = 4, .bert = true};
  const auto plain = train(folder, run);
  run.moments_on_host = true;
  CHECK_EQ(train(folder, run), plain);
}

// There are one layer to five: none to three of them go to the host.
TEST_CASE(
    "offload on a GPU: a BERT's activations on the host change no bit, alone, with its moments, and on two "
    "ranks") {
  const tests::Folder folder;
  for (const int layers : {1, 2, 3, 5}) {
    Run run{.compute = kBf16, .steps = 3, .bert = true, .layers = layers};
    const auto plain = train(folder, run);
    run.activations_on_host = true;
    CHECK_EQ(train(folder, run), plain);
  }
  Run run{.steps = 3, .bert = true, .layers = 5};
  const auto plain = train(folder, run);
  for (const auto level :
       {model::Checkpointing::kNone, model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
    Run moved = offloaded(run);
    moved.checkpointing = level;
    CHECK_EQ(train(folder, moved), plain);
  }
  run.ranks = 2;
  const auto shared = train(folder, run);
  CHECK_EQ(train(folder, offloaded(run)), shared);
}

TEST_CASE("offload on a GPU: activations on the host change no bit at any level of recomputation") {
  const tests::Folder folder;
  Run run = run_of(kBf16);
  const auto plain = train(folder, run);
  for (const auto level :
       {model::Checkpointing::kNone, model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
    run.checkpointing = level;
    run.activations_on_host = true;
    CHECK_EQ(train(folder, run), plain);
  }
}

TEST_CASE("offload on a GPU: models of one, two and three layers have fewer to move than there are slots") {
  const tests::Folder folder;
  for (const int layers : {1, 2, 3}) {
    Run run = run_of(kBf16);
    run.layers = layers;
    const auto plain = train(folder, run);
    CHECK_EQ(train(folder, offloaded(run)), plain);
  }
}

TEST_CASE(
    "offload on a GPU: two ranks with shards on one GPU, and two that share each matrix, keep their bits") {
  const tests::Folder folder;
  for (const int tensor_parallel : {1, 2}) {
    Run run = run_of(kBf16, /*ranks=*/2);
    run.tensor_parallel = tensor_parallel;
    const auto plain = train(folder, run);
    CHECK_EQ(train(folder, offloaded(run)), plain);
  }
}

// Scales are made of histories that the way of the moments and the activations must leave alone, and layers that
// come back from the host are quantized again to the same bytes.
TEST_CASE(
    "offload on a GPU: linear layers in fp8 keep their bits, of one rank and two, however much is computed "
    "again") {
  const tests::Folder folder;
  Run one = run_of(kBf16);
  one.fp8 = true;
  const auto expected = train(folder, one);
  for (const auto level :
       {model::Checkpointing::kNone, model::Checkpointing::kSelective, model::Checkpointing::kFull}) {
    one.checkpointing = level;
    CHECK_EQ(train(folder, offloaded(one)), expected);
  }
  for (const int tensor_parallel : {1, 2}) {
    Run run = run_of(kBf16, /*ranks=*/2);
    run.fp8 = true;
    run.tensor_parallel = tensor_parallel;
    const auto plain = train(folder, run);
    CHECK_EQ(train(folder, offloaded(run)), plain);
    run.fp8 = false;
    CHECK_NE(train(folder, run), plain);
  }
}

TEST_CASE("offload on a GPU: a run in fp8 that offloads continues from one that does not, and the reverse") {
  const tests::Folder folder;
  Run whole = run_of(kBf16);
  whole.fp8 = true;
  whole.steps = 6;
  const auto losses = train(folder, whole);
  for (const bool first_offloads : {false, true}) {
    const tests::Folder saved;
    Run first = whole, second = whole;
    first.checkpoints = second.checkpoints = saved.path();
    first.steps = 3;
    train(folder, first_offloads ? offloaded(first) : first);
    const auto rest = train(folder, first_offloads ? second : offloaded(second));
    CHECK_EQ(rest, std::vector<double>(losses.begin() + 3, losses.end()));
  }
}

TEST_CASE("offload on a GPU: checkpoints beside training and at the end have the bytes of a run without") {
  const tests::Folder folder, plain, moved;
  Run run = run_of(kBf16);
  run.save_every = 2;
  run.checkpoints = plain.path();
  train(folder, run);
  run = offloaded(run);
  run.checkpoints = moved.path();
  train(folder, run);
  for (const char* step : {"/step_00000002", "/step_00000004"}) {
    const auto files = shard_files(plain.path() + step);
    CHECK_EQ(files.size(), 1);
    CHECK(shard_files(moved.path() + step) == files);
  }
}

TEST_CASE("offload on a GPU: a checkpoint continues with and without, and from one rank to two and the CPU") {
  const tests::Folder folder;
  const Run whole{.steps = 6, .layers = 5};
  const auto losses = train(folder, whole);
  for (const bool first_offloads : {false, true}) {
    const tests::Folder saved;
    Run first = whole;
    first.steps = 3;
    first.checkpoints = saved.path();
    train(folder, first_offloads ? offloaded(first) : first);
    Run second = whole;
    second.checkpoints = saved.path();
    const auto rest = train(folder, first_offloads ? second : offloaded(second));
    CHECK_EQ(rest, std::vector<double>(losses.begin() + 3, losses.end()));
  }
  for (const auto where : {Where::kGpu, Where::kCpu}) {
    const tests::Folder saved;
    Run first = offloaded(whole);
    first.steps = 3;
    first.checkpoints = saved.path();
    train(folder, first);
    Run second = whole;
    second.where = where;
    second.checkpoints = saved.path();
    if (where == Where::kGpu) {
      second = offloaded(second);
      second.ranks = 2;
    }
    CHECK_LT(largest_difference(train(folder, second), {losses.begin() + 3, losses.end()}), 1e-5);
  }
}

TEST_CASE("offload on a GPU: LAMB is refused with what to change") {
  const tests::Folder folder;
  Run run = run_of(kBf16);
  run.lamb = run.moments_on_host = true;
  auto device = kernels::cuda::Device::create({});
  REQUIRE(device);
  auto backend = kernels::cuda::make_backend(std::move(device).value());
  REQUIRE(backend);
  const auto options = options_of(folder, run);
  const auto layout = plan::make_layout(std::vector<int64_t>{64}, 1);
  const auto refused = train::Optimizer::create(options.optimizer, {}, layout, 0, **backend);
  REQUIRE_FALSE(refused);
  CHECK_NE(refused.error().to_string().find("optimizer_offload = false"), std::string::npos);
}

}  // namespace gpu_training
