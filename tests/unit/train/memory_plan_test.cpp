#include "runtime/trainer/train/memory_plan.h"

#include <doctest/doctest.h>

using namespace shardrun;

namespace {

train::SessionOptions llama(const model::LlamaConfig& config, kernels::DType compute) {
  train::SessionOptions options;
  options.model = config;
  options.compute = compute;
  options.sequence_length = 2048;
  return options;
}

const model::LlamaConfig k7B{32, 4096, 32, 32, 11008, 32000}, k13B{40, 5120, 40, 40, 13824, 32000},
    k70B{80, 8192, 64, 8, 28672, 32000};

}  // namespace

TEST_CASE("memory plan: Llama-2 has its published numbers of parameters, and shards add up to the whole") {
  const auto planned = [](const model::LlamaConfig& config, int shard_degree) {
    return train::plan_model(llama(config, kernels::DType::kFp32), shard_degree, 1, 1);
  };
  CHECK_EQ(planned(k7B, 1).parameters, 6738415616);
  CHECK_EQ(planned(k13B, 1).parameters, 13015864320);
  CHECK_EQ(planned(k70B, 1).parameters, 68976648192);
  CHECK_EQ(planned(k7B, 1).memory.masters, 4 * int64_t{6738415616});
  CHECK_EQ(planned(k7B, 8).memory.masters, int64_t{6738415616} / 2);
  CHECK_LT(planned(k7B, 8).memory.moments - int64_t{6738415616}, 2 * 4096);  // each moment fills whole pages
  CHECK_EQ(planned(k7B, 1).memory.gathered, 0);
}

TEST_CASE("memory plan: a rank of four holds at most 26 % of the whole model state, in fp32 and in bf16") {
  for (const auto compute : {kernels::DType::kFp32, kernels::DType::kBf16}) {
    const auto options = llama(k7B, compute);
    const double whole = static_cast<double>(train::plan_model(options, 1, 4, 1).memory.model_state());
    CHECK_LT(static_cast<double>(train::plan_model(options, 4, 1, 1).memory.model_state()), 0.26 * whole);
    CHECK_LT(static_cast<double>(train::plan_model(options, 2, 1, 2).memory.model_state()), 0.26 * whole);
  }
}

TEST_CASE("memory plan: every lever lowers what it is for, and moves it to files where it says so") {
  auto options = llama(k7B, kernels::DType::kBf16);
  const auto plain = train::plan_model(options, 8, 1, 1).memory;
  options.checkpointing = model::Checkpointing::kSelective;
  const auto selective = train::plan_model(options, 8, 1, 1).memory;
  options.checkpointing = model::Checkpointing::kFull;
  const auto full = train::plan_model(options, 8, 1, 1).memory;
  CHECK_LT(selective.activations, plain.activations);
  CHECK_LT(full.activations, selective.activations / 3);
  options.checkpointing = model::Checkpointing::kNone;
  options.activation_offload_directory = "/scratch";
  options.optimizer.offload_directory = "/scratch";
  const auto offloaded = train::plan_model(options, 8, 1, 1).memory;
  CHECK_LT(offloaded.activations, plain.activations / 4);
  CHECK_LT(offloaded.moments, plain.moments / 100);
  CHECK_GE(offloaded.in_files, plain.moments);
  CHECK_EQ(offloaded.masters, plain.masters);
}

TEST_CASE("memory plan: keeping gathered blocks costs the whole model in the compute dtype") {
  auto options = llama(k7B, kernels::DType::kBf16);
  options.keeps_parameters = true;
  const int64_t kept = train::plan_model(options, 8, 1, 1).memory.gathered;
  const int64_t largest_block = 4 * 4096 * 4096 + 3 * int64_t{11008} * 4096 + 2 * 4096;
  CHECK_EQ(kept, 2 * int64_t{6738415616} + 2 * 4 * largest_block);
}

TEST_CASE("memory plan: on a GPU, CUDA's context and a workspace that no op outgrows are counted") {
  auto options = llama(k7B, kernels::DType::kBf16);
  options.attention = spec::GpuAttention::kOwn;
  const auto cpu = train::plan_model(options, 1, 1, 1).memory;
  options.device = kernels::DeviceKind::kGpu;
  const auto gpu = train::plan_model(options, 1, 1, 1).memory;
  CHECK_EQ(cpu.context, 0);
  CHECK_EQ(cpu.gpu_total(), 0);
  CHECK_EQ(gpu.context, int64_t{600} << 20);
  CHECK_EQ(gpu.workspace, int64_t{64} << 20);
  CHECK_EQ(gpu.gpu_total(),
           gpu.model_state() + gpu.gathered + gpu.activations + (int64_t{64} << 20) + (int64_t{600} << 20));
  CHECK_EQ(gpu.host_total(), gpu.communication + gpu.saving + gpu.process);

  // Attention's backward keeps four bytes for each of 32 · 8192 queries of 128 heads.
  options.model = model::LlamaConfig{1, 16384, 128, 8, 1024, 256};
  options.sequence_length = 8192;
  options.micro_batch = 32;
  CHECK_EQ(train::plan_model(options, 1, 1, 1).memory.workspace, int64_t{128} << 20);
  // Norms of long rows keep 1152 of them in fp32.
  options.micro_batch = 1;
  CHECK_EQ(train::plan_model(options, 1, 1, 1).memory.workspace, int64_t{1152} * 16384 * 4);
}

TEST_CASE(
    "memory plan: all weights of a 14B model train on a GPU of 139 GiB beside a host of 128 GiB, by "
    "offload") {
  auto options = llama({48, 5120, 40, 8, 13824, 152064}, kernels::DType::kBf16);
  options.device = kernels::DeviceKind::kGpu;
  options.micro_batch = 4;
  options.gradient_accumulation = 64;
  options.checkpointing = model::Checkpointing::kFull;
  constexpr int64_t kGiB = int64_t{1} << 30, kParameters = 14'769'689'600;
  const auto plain = train::plan_model(options, 1, 1, 1).memory;
  CHECK_EQ(plain.masters, 4 * kParameters);
  CHECK_GT(plain.gpu_total(), 139 * kGiB);
  CHECK_EQ(plain.offloaded, 0);

  options.optimizer.offload_to_host = options.activation_offload_to_host = true;
  const auto moved = train::plan_model(options, 1, 1, 1).memory;
  constexpr int64_t kInput = int64_t{4} * 2048 * 5120 * 2;
  CHECK_EQ(moved.offloaded, 8 * kParameters + 46 * kInput);
  CHECK_EQ(moved.moments, 3 * 2 * 4 * (int64_t{8} << 20));
  CHECK_EQ(moved.compute_copy, 0);
  CHECK_EQ(plain.activations - moved.activations, 46 * kInput);
  CHECK_LT(moved.gpu_total(), 130 * kGiB);
  CHECK_LT(moved.host_total(), 120 * kGiB);
  CHECK_EQ(moved.total(), moved.gpu_total() + moved.host_total());
}

TEST_CASE(
    "memory plan: attention by cuDNN is counted where it may run, and long sequences leave it to our "
    "kernels") {
  auto options = llama(model::LlamaConfig{1, 4096, 32, 8, 1024, 256}, kernels::DType::kBf16);
  options.device = kernels::DeviceKind::kGpu;
  options.sequence_length = 2048;
  options.micro_batch = 4;
  const auto workspace = [&] { return train::plan_model(options, 1, 1, 1).memory.workspace; };
  // The workspace holds gradients of scores in bf16, and in fp32 those of two shared tensors and a sum for each
  // row; there are 32 heads of 128.
  constexpr int64_t kMargin = int64_t{1} << 20, kRows = int64_t{4} * 32 * 2048;
  const int64_t wanted = 2 * kRows * 2048 + 2 * 4 * kRows * 128 + 4 * kRows + kMargin;
  CHECK_EQ(workspace(), wanted);
  CHECK_EQ(train::cudnn_bytes(options, 1), wanted);
  CHECK_LT(train::plan_model(options, 1, 1, 2).memory.workspace, wanted);  // each rank has half of the heads

  options.attention = spec::GpuAttention::kOwn;
  CHECK_EQ(workspace(), int64_t{64} << 20);
  options.attention = spec::GpuAttention::kAuto;
  options.compute = kernels::DType::kFp32;
  CHECK_EQ(workspace(), int64_t{64} << 20);
  options.compute = kernels::DType::kBf16;
  options.sequence_length = 8192;
  CHECK_EQ(workspace(), int64_t{64} << 20);
  options.attention = spec::GpuAttention::kCudnn;
  CHECK_GT(workspace(), int64_t{16} << 30);
}
