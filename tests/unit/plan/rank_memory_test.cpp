#include "runtime/plan/rank_memory.h"

#include <doctest/doctest.h>

#include <string>

#include "runtime/plan/workspace.h"

using namespace shardrun;

namespace {

plan::RankOptions llama(const plan::LlamaConfig& config, plan::DType compute) {
  plan::RankOptions options;
  options.model = config;
  options.compute = compute;
  options.sequence_length = 2048;
  return options;
}

const plan::LlamaConfig k7B{32, 4096, 32, 32, 11008, 32000}, k13B{40, 5120, 40, 40, 13824, 32000},
    k70B{80, 8192, 64, 8, 28672, 32000};

plan::ModelPlan planned(const plan::RankOptions& options, int shard_degree, int replicas,
                        int tensor_parallel) {
  return plan::rank_memory(options, {shard_degree, replicas, tensor_parallel}, {});
}

}  // namespace

TEST_CASE("memory plan: Llama-2 has its published numbers of parameters, and shards add up to the whole") {
  const auto of = [](const plan::LlamaConfig& config, int shard_degree) {
    return planned(llama(config, plan::DType::kFp32), shard_degree, 1, 1);
  };
  CHECK_EQ(of(k7B, 1).parameters, 6738415616);
  CHECK_EQ(of(k13B, 1).parameters, 13015864320);
  CHECK_EQ(of(k70B, 1).parameters, 68976648192);
  CHECK_EQ(of(k7B, 1).memory.masters, 4 * int64_t{6738415616});
  CHECK_EQ(of(k7B, 8).memory.masters, int64_t{6738415616} / 2);
  CHECK_LT(of(k7B, 8).memory.moments - int64_t{6738415616}, 2 * 4096);  // each moment fills whole pages
  CHECK_EQ(of(k7B, 1).memory.gathered, 0);
}

TEST_CASE("memory plan: a rank of four holds at most 26 % of the whole model state, in fp32 and in bf16") {
  for (const auto compute : {plan::DType::kFp32, plan::DType::kBf16}) {
    const auto options = llama(k7B, compute);
    const double whole = static_cast<double>(planned(options, 1, 4, 1).memory.model_state());
    CHECK_LT(static_cast<double>(planned(options, 4, 1, 1).memory.model_state()), 0.26 * whole);
    CHECK_LT(static_cast<double>(planned(options, 2, 1, 2).memory.model_state()), 0.26 * whole);
  }
}

TEST_CASE("memory plan: every lever lowers what it is for, and moves it to files where it says so") {
  auto options = llama(k7B, plan::DType::kBf16);
  const auto plain = planned(options, 8, 1, 1).memory;
  options.checkpointing = plan::Checkpointing::kSelective;
  const auto selective = planned(options, 8, 1, 1).memory;
  options.checkpointing = plan::Checkpointing::kFull;
  const auto full = planned(options, 8, 1, 1).memory;
  CHECK_LT(selective.activations, plain.activations);
  CHECK_LT(full.activations, selective.activations / 3);
  options.checkpointing = plan::Checkpointing::kNone;
  options.activation_offload = options.optimizer_offload = true;
  const auto offloaded = planned(options, 8, 1, 1).memory;
  CHECK_LT(offloaded.activations, plain.activations / 4);
  CHECK_LT(offloaded.moments, plain.moments / 100);
  CHECK_GE(offloaded.in_files, plain.moments);
  CHECK_EQ(offloaded.masters, plain.masters);
}

TEST_CASE("memory plan: keeping gathered blocks costs the whole model in the compute dtype") {
  auto options = llama(k7B, plan::DType::kBf16);
  options.keeps_parameters = true;
  const int64_t kept = planned(options, 8, 1, 1).memory.gathered;
  const int64_t largest_block = 4 * 4096 * 4096 + 3 * int64_t{11008} * 4096 + 2 * 4096;
  CHECK_EQ(kept, 2 * int64_t{6738415616} + 2 * 4 * largest_block);
}

TEST_CASE("memory plan: on a GPU, CUDA's context and a workspace that no op outgrows are counted") {
  auto options = llama(k7B, plan::DType::kBf16);
  options.attention = spec::GpuAttention::kOwn;
  const auto cpu = planned(options, 1, 1, 1).memory;
  options.device = plan::DeviceKind::kGpu;
  const auto gpu = planned(options, 1, 1, 1).memory;
  CHECK_EQ(cpu.context, 0);
  CHECK_EQ(cpu.gpu_total(), 0);
  CHECK_EQ(gpu.context, int64_t{550} << 20);
  CHECK_EQ(gpu.workspace, int64_t{64} << 20);
  CHECK_EQ(gpu.gpu_total(),
           gpu.model_state() + gpu.gathered + gpu.activations + (int64_t{64} << 20) + (int64_t{550} << 20));
  CHECK_EQ(gpu.host_total(), gpu.communication + gpu.saving + gpu.process);

  // Attention's backward keeps four bytes for each of 32 · 8192 queries of 128 heads.
  options.model = plan::LlamaConfig{1, 16384, 128, 8, 1024, 256};
  options.sequence_length = 8192;
  options.micro_batch = 32;
  CHECK_EQ(planned(options, 1, 1, 1).memory.workspace, int64_t{128} << 20);
  // Norms of long rows keep 1152 of them in fp32.
  options.micro_batch = 1;
  CHECK_EQ(planned(options, 1, 1, 1).memory.workspace, int64_t{1152} * 16384 * 4);
}

TEST_CASE(
    "memory plan: all weights of a 14B model train on a GPU of 139 GiB beside a host of 128 GiB, by "
    "offload") {
  auto options = llama({48, 5120, 40, 8, 13824, 152064}, plan::DType::kBf16);
  options.device = plan::DeviceKind::kGpu;
  options.micro_batch = 4;
  options.gradient_accumulation = 64;
  options.checkpointing = plan::Checkpointing::kFull;
  constexpr int64_t kGiB = int64_t{1} << 30, kParameters = 14'769'689'600;
  const auto plain = planned(options, 1, 1, 1).memory;
  CHECK_EQ(plain.masters, 4 * kParameters);
  CHECK_GT(plain.gpu_total(), 139 * kGiB);
  CHECK_EQ(plain.offloaded, 0);

  options.activation_offload = options.optimizer_offload = true;
  const auto moved = planned(options, 1, 1, 1).memory;
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
  auto options = llama(plan::LlamaConfig{1, 4096, 32, 8, 1024, 256}, plan::DType::kBf16);
  options.device = plan::DeviceKind::kGpu;
  options.sequence_length = 2048;
  options.micro_batch = 4;
  const auto workspace = [&] { return planned(options, 1, 1, 1).memory.workspace; };
  // Gradients of scores in bf16, of two shared tensors and a sum a row in fp32; 32 heads of 128.
  constexpr int64_t kMargin = int64_t{4} << 20, kRows = int64_t{4} * 32 * 2048;
  const int64_t wanted = 2 * kRows * 2048 + 2 * 4 * kRows * 128 + 4 * kRows + kMargin;
  CHECK_EQ(workspace(), wanted);
  CHECK_EQ(plan::cudnn_bytes(options, 1), wanted);
  CHECK_LT(planned(options, 1, 1, 2).memory.workspace, wanted);  // half of the heads

  options.attention = spec::GpuAttention::kOwn;
  CHECK_EQ(workspace(), int64_t{64} << 20);
  options.attention = spec::GpuAttention::kAuto;
  options.compute = plan::DType::kFp32;
  CHECK_EQ(workspace(), int64_t{64} << 20);
  options.compute = plan::DType::kBf16;
  options.sequence_length = 8192;
  CHECK_EQ(workspace(), int64_t{64} << 20);
  options.attention = spec::GpuAttention::kCudnn;
  CHECK_GT(workspace(), int64_t{16} << 30);
}

TEST_CASE(
    "memory plan: a CPU's workspace is attention's on each thread that has a head, and products' on one") {
  plan::OpList list;
  list.attention = {.B = 1, .T = 4096, .H = 32, .K = 4, .D = 128};
  // Of backward on pairs of bf16, of a head: keys twice and values in bf16, two gradients; of a tile of 64: queries and output
  // gradients in bf16 and packed both ways, two of probabilities and one packed, two of scores, two of queries, four for a token.
  constexpr int64_t kHead = 4096 * 128, kQueries = 64 * 128, kScores = 64 * 64;
  constexpr int64_t kThread = 2 * (3 * kHead + 2 * kQueries + 2 * kScores) + 4 * 2 * kHead +
                              4 * (4 * kQueries / 2 + kScores / 2 + 2 * kScores + 2 * kQueries + 4 * 64);
  CHECK_EQ(plan::cpu_workspace_bytes(list, 1, 0), kThread);
  CHECK_EQ(plan::cpu_workspace_bytes(list, 3, 0), 3 * kThread);
  CHECK_EQ(plan::cpu_workspace_bytes(list, 64, 0), 4 * kThread);  // heads of keys and values
  CHECK_EQ(plan::cpu_workspace_bytes(list, 3, kThread + 1000), 3 * kThread + 1000);
  list.attention.B = 0;
  CHECK_EQ(plan::cpu_workspace_bytes(list, 3, 1000), 1000);
}

TEST_CASE(
    "memory plan: CPUs without bf16 hold a product's operands and result in fp32 beside oneDNN's scratch") {
  using Op = plan::LinearCall::Op;
  CHECK_EQ(plan::widened_bytes({Op::kForward, 128, 256, 512}), 4 * (128 * 256 + 256 * 512 + 128 * 512));
  CHECK_EQ(plan::widened_bytes({Op::kForward, 128, 256, 512, /*bias=*/true}),
           4 * (128 * 256 + 256 * 512 + 512 + 128 * 512));
  CHECK_EQ(plan::widened_bytes({Op::kForwardFp32, 128, 256, 512}), 4 * (128 * 256 + 256 * 512));
  CHECK_EQ(plan::widened_bytes({Op::kBackwardWeight, 128, 256, 512}), 4 * (512 * 128 + 128 * 256));

  plan::OpList list{plan::DType::kBf16, {{Op::kForward, 128, 256, 512}}, {}};
  const int64_t with = plan::expected_product_bytes(list, 2, plan::CpuProducts::kOneDnn);
  const int64_t without = plan::expected_product_bytes(list, 2, plan::CpuProducts::kWidened);
  list.dtype = plan::DType::kFp32;
  CHECK_EQ(with, 2 * (128 * 256 + 4992));
  CHECK_EQ(without, plan::widened_bytes(list.linears[0]) +
                        plan::expected_product_bytes(list, 2, plan::CpuProducts::kOneDnn));
  CHECK_EQ(plan::expected_product_bytes(list, 2, plan::CpuProducts::kWidened),
           plan::expected_product_bytes(list, 2, plan::CpuProducts::kOneDnn));
}

TEST_CASE("memory plan: packed products hold a panel of columns, and the rows of what lies transposed") {
  using Op = plan::LinearCall::Op;
  const auto bytes = [](plan::LinearCall call, plan::DType dtype) {
    return plan::expected_product_bytes({dtype, {call}, {}}, 3, plan::CpuProducts::kPacked);
  };

  // 256 and 128 words of 64 columns, and 6 rows of 64 sums.
  CHECK_EQ(bytes({Op::kForward, 128, 256, 512}, plan::DType::kFp32), 3 * 4 * (256 * 64 + 6 * 64));
  CHECK_EQ(bytes({Op::kForward, 128, 256, 512}, plan::DType::kBf16), 3 * 4 * (128 * 64 + 6 * 64));
  // Of 4096 words 1024 at a time: the sums of all 128 rows, in sixes, wait.
  CHECK_EQ(bytes({Op::kBackwardInput, 128, 256, 4096}, plan::DType::kFp32), 3 * 4 * (1024 * 64 + 132 * 64));
  // A gradient of 512 × 256, over 128 rows: 516 rows of 128 words are packed, or as many as 384 Ki words have.
  CHECK_EQ(bytes({Op::kBackwardWeight, 128, 256, 512}, plan::DType::kFp32),
           3 * 4 * (128 * 64 + 516 * 128 + 6 * 64));
  CHECK_EQ(bytes({Op::kBackwardWeight, 8192, 256, 512}, plan::DType::kFp32),
           3 * 4 * (1024 * 64 + 48 * 8192 + 48 * 64));
  // Too few rows: as without.
  CHECK_EQ(bytes({Op::kForward, 63, 256, 512}, plan::DType::kBf16), 3 * (128 * 256 + 4992));
}

TEST_CASE(
    "memory plan: products by tiles hold a panel of groups of columns, and a strip of rows or what lies "
    "transposed") {
  using Op = plan::LinearCall::Op;
  const auto bytes = [](plan::LinearCall call, plan::DType dtype) {
    return plan::expected_product_bytes({dtype, {call}, {}}, 3, plan::CpuProducts::kTiled);
  };

  // 128 words of 512 columns, a strip of 32 rows of 128 words, and 32 rows of 512 sums.
  CHECK_EQ(bytes({Op::kForward, 128, 256, 512}, plan::DType::kBf16),
           3 * 4 * (128 * 512 + 32 * 128 + 32 * 512));
  // Of 2048 words 1024 at a time: the sums of 512 rows wait.
  CHECK_EQ(bytes({Op::kBackwardInput, 2048, 256, 4096}, plan::DType::kBf16),
           3 * 4 * (1024 * 256 + 32 * 128 + 512 * 256));
  // A gradient of 512 × 256, over 128 rows: 512 rows of 64 words are packed, beside 128 columns; over 8192, 128 rows.
  CHECK_EQ(bytes({Op::kBackwardWeight, 128, 256, 512}, plan::DType::kBf16),
           3 * 4 * (64 * 128 + 512 * 64 + 32 * 128));
  CHECK_EQ(bytes({Op::kBackwardWeight, 8192, 256, 512}, plan::DType::kBf16),
           3 * 4 * (1024 * 128 + 128 * 4096 + 128 * 128));
  // Too narrow, or too shallow: as oneDNN does. In fp32, and with too few rows: as others do.
  CHECK_EQ(bytes({Op::kForward, 128, 256, 64}, plan::DType::kBf16), 3 * (128 * 256 + 4992));
  CHECK_EQ(bytes({Op::kForward, 128, 64, 512}, plan::DType::kBf16), 3 * (128 * 64 + 4992));
  CHECK_EQ(bytes({Op::kForward, 128, 256, 512}, plan::DType::kFp32), 3 * 4 * (256 * 64 + 6 * 64));
  CHECK_EQ(bytes({Op::kForward, 63, 256, 512}, plan::DType::kBf16), 3 * (128 * 256 + 4992));
}

TEST_CASE("memory plan: of a job's spec, with its mesh, its checkpoints and its process") {
  const std::string text = R"(name = "job"
[program]
trainer = "NAME"
[resources]
ranks_per_node = 4
[model]
preset = "PRESET"
[data]
files = ["corpus"]
sequence_length = 64
[checkpoint]
every_steps = 10
[sharding]
strategy = "hybrid_shard"
shard_degree = 2
)";
  const auto of = [&](const char* trainer, const char* preset, int64_t world) {
    std::string job = text;
    job.replace(job.find("NAME"), 4, trainer);
    job.replace(job.find("PRESET"), 6, preset);
    const auto spec = spec::parse_job_spec(job, "job.toml");
    REQUIRE(spec);
    return plan::job_memory(*spec, plan::even_batch(2, 3, world), {.world_size = world, .ranks_per_node = 4});
  };
  const auto llama = of("llama", "llama-1m", 4), bert = of("bert", "bert-tiny", 4);
  REQUIRE(llama);
  CHECK_EQ(llama->shard_degree, 2);
  CHECK_EQ(llama->replicas, 2);
  CHECK_EQ(llama->blocks, 6);
  CHECK_EQ(llama->memory.process, plan::process_bytes(plan::program_bytes(4), 4));
  CHECK_GE(llama->memory.saving, 12 * llama->parameters / 4);
  CHECK_LT(llama->memory.saving, 12 * llama->parameters / 4 + (1 << 20) + 4096);
  REQUIRE(bert);
  CHECK_EQ(bert->parameters, 4433468);
  CHECK_EQ(bert->blocks, 3);
  const auto odd = of("llama", "llama-1m", 3);
  REQUIRE_FALSE(odd);
  CHECK(odd.error().to_string().starts_with("job.toml:15:16: shard_degree 2 does not divide 3"));
}

TEST_CASE(
    "memory plan: experts over ranks are a shard and no gathered block, with room for all rows that may "
    "come") {
  // Two layers of 8 experts of 3 · 64 · 128 elements.
  plan::LlamaConfig config{.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 256};
  config.experts = {.count = 8, .per_token = 2};
  plan::RankOptions options;
  options.model = config;
  options.sequence_length = 128;
  const plan::MemoryPlan whole = planned(options, 4, 1, 1).memory;
  config.expert_parallel = 4;
  options.model = config;
  const plan::MemoryPlan spread = planned(options, 4, 1, 1).memory;

  constexpr int64_t kExperts = 8 * 3 * 64 * 128, kDense = 4 * 64 * 64 + 2 * 64 + 8 * 64;
  constexpr int64_t kHead = 256 * 64 + 64 + 64;  // with its padding
  CHECK_EQ(spread.masters, whole.masters);
  // Two blocks in turn beside the head, and the gradients of two.
  CHECK_EQ(whole.gathered, 2 * 4 * (kExperts + kDense) + 4 * kHead);
  CHECK_EQ(spread.gathered, 4 * 4 * kDense + 4 * kHead);
  // 4 ranks · 128 tokens, each with two choices among a rank's two experts, in rows of both matrices' results.
  CHECK_GT(spread.activations - whole.activations, int64_t{2} * (4 - 1) * 128 * 2 * 3 * 128 * 4);
}

TEST_CASE(
    "memory plan: a sequence over ranks takes its part of each rank's activations, and keys and values of "
    "all") {
  plan::RankOptions options;
  options.model =
      plan::LlamaConfig{.layers = 8, .hidden = 64, .heads = 4, .kv_heads = 1, .ffn = 128, .vocab = 256};
  options.sequence_length = 4096;
  const plan::MemoryPlan whole = planned(options, 4, 1, 1).memory;
  options.context_parallel = 4;
  const plan::MemoryPlan shared = planned(options, 4, 1, 1).memory;
  // Keys and values of one layer: of all tokens once in the compute dtype and twice as gradients, and this rank's sums.
  constexpr int64_t kKeys = int64_t{4096} * 2 * 16 * 4;
  constexpr int64_t kDocuments = 4096 * 4;  // where those of all tokens begin
  const int64_t parts = shared.activations - 3 * kKeys - kKeys / 4 - kDocuments;
  CHECK_EQ(shared.masters, whole.masters);
  CHECK_GT(parts, (whole.activations - kDocuments) / 4 - 65536);
  CHECK_LT(parts, (whole.activations - kDocuments) / 4 + 65536);
}

TEST_CASE("mesh: neighbours share sequences, whatever shards they have, and divide the ranks") {
  const auto solved = [](const std::string& sharding, int64_t world) {
    const auto spec = spec::parse_job_spec(
        "name = \"x\"\n[program]\ntrainer = \"llama\"\n[data]\nfiles = [\"x\"]\nsequence_length = 256\n"
        "[model]\npreset = \"llama-1m\"\n[sharding]\n" +
            sharding,
        "job.toml");
    REQUIRE_MESSAGE(spec, spec.error().to_string());
    return plan::solve_mesh(*spec, world, 4);
  };

  const auto mesh = solved("context_parallel = 2\ntensor_parallel = 2\n", 8);
  REQUIRE(mesh);
  CHECK_EQ(mesh->readers(), 2);
  CHECK_EQ(mesh->shard_degree, 4);
  CHECK_EQ(mesh->context_group(5), std::vector<uint32_t>{5, 7});
  CHECK_EQ(mesh->context_group(2), std::vector<uint32_t>{0, 2});
  const auto odd = solved("context_parallel = 4\n", 6);
  REQUIRE_FALSE(odd);
  CHECK_EQ(odd.error().to_string(),
           "job.toml:10:20: context_parallel 4 does not divide 6 data-parallel ranks; write 1, 2, 3 or 6");
}

TEST_CASE("memory plan: every product more than were measured with the program takes what one more took") {
  plan::LlamaConfig config{.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 256};
  config.experts = {.count = 8, .per_token = 2};
  plan::RankOptions options;
  options.model = config;
  options.sequence_length = 128;
  const auto process = [&](int64_t micro_batch, const plan::ProgramBytes& program) {
    options.micro_batch = micro_batch;
    return plan::job_memory(options, {}, {.program = program}).memory.process;
  };
  constexpr int64_t kBytes = 20'000'000, kOfOne = 500'000;
  const int64_t none = process(1, {kBytes, 0, 0});
  CHECK_EQ(none, plan::process_bytes(kBytes, 1));
  const int64_t all = process(1, {kBytes, 0, kOfOne}) - none;
  // Pieces of 16, 32, 64 and 128 rows, each with 8 products; and the router's and the dense block's.
  CHECK_GE(all, (4 * 8 + 3) * kOfOne);
  CHECK_EQ(all % kOfOne, 0);
  CHECK_EQ(process(1, {kBytes, 10, kOfOne}) - none, all - 10 * kOfOne);
  CHECK_EQ(process(1, {kBytes, 1000, kOfOne}), none);
  // Twice the tokens are pieces of one more size.
  CHECK_EQ(process(2, {kBytes, 0, kOfOne}) - none, all + 8 * kOfOne);
}

TEST_CASE("mesh: experts are shared by the ranks that share a copy of the state, in whole lines of memory") {
  const auto refusal = [](const std::string& more, int64_t world) {
    const auto spec = spec::parse_job_spec(
        "name = \"x\"\n[program]\ntrainer = \"llama\"\n[data]\nfiles = [\"x\"]\n"
        "[model]\npreset = \"mixtral-2m\"\n" +
            more,
        "job.toml");
    REQUIRE_MESSAGE(spec, spec.error().to_string());
    const auto mesh = plan::solve_mesh(*spec, world, 4);
    return mesh ? "" : mesh.error().to_string();
  };

  CHECK(refusal("[sharding]\nexpert_parallel = 4\n", 4).empty());
  CHECK(
      refusal("[sharding]\nexpert_parallel = 2\nstrategy = \"hybrid_shard\"\nshard_degree = 2\n", 4).empty());
  CHECK(refusal("[sharding]\nexpert_parallel = 2\n", 4) ==
        "job.toml:9:19: expert_parallel 2 is not the 4 ranks that share a copy of the state; write 4, or "
        "strategy = "
        "\"hybrid_shard\" with shard_degree = 2");
  CHECK(refusal("hidden = 8\nffn = 2\n[sharding]\nexpert_parallel = 4\n", 4).find("have 96 elements") ==
        std::string::npos);
  CHECK(refusal("hidden = 8\nffn = 3\n[sharding]\nexpert_parallel = 4\n", 4) ==
        "job.toml:11:19: a rank's experts have 144 elements, which 32 does not divide; make hidden or ffn a "
        "multiple of "
        "32, or remove it");
}

TEST_CASE(
    "memory plan: a group's rings are for its sums alone where each rank has a CPU, for gathers as well "
    "where not") {
  plan::RankOptions options;
  options.model =
      plan::LlamaConfig{.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 4, .ffn = 128, .vocab = 256};
  options.sequence_length = 128;
  constexpr int64_t kMib = 1 << 20;
  const auto passing = [&](const plan::Degrees& degrees, int ranks, int cpus) {
    return plan::rank_memory(options, degrees, {.crowd = {ranks, cpus}}).memory.communication;
  };
  // Each of two operations at a time writes one ring of 512 KiB and reads the other's; gathers write and read as many.
  CHECK_EQ(passing({2, 1, 1}, 2, 2), 2 * kMib);
  CHECK_EQ(passing({2, 1, 1}, 2, 1), 4 * kMib);
  // With four ranks a ring to one reader has 256 KiB.
  CHECK_EQ(passing({4, 1, 1}, 4, 4), 3 * kMib);
  CHECK_EQ(passing({4, 1, 1}, 4, 2), 7 * kMib);
  // A tensor group is a group like others.
  CHECK_EQ(passing({1, 1, 4}, 4, 2), passing({4, 1, 1}, 4, 2));
  CHECK_EQ(passing({2, 1, 2}, 4, 2), 2 * kMib);
}
