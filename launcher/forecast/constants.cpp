#include "launcher/forecast/constants.h"

namespace shardrun::launcher {
namespace {

// Multiprocessors held: NCCL's channels of 108 (A100), SMDDP's fewer than 9.
constexpr double kNcclHeld = 24.0 / 108.0, kSmddpHeld = 9.0 / 108.0;
// NCCL over registered buffers, which Megatron-Bridge's FSDP recipes switch on (nccl_ub): 1 to 6 of 132.
constexpr double kRegisteredHeld = 6.0 / 132.0;
// FlashAttention 1 reached 25 % to 40 % of an A100's peak and 2 reached 50 % to 73 % (its paper): about the middle of
// both is taken. 2 reached 35 % of a Hopper's (FlashAttention 3's paper), which puts 1 near 20 % there.
constexpr double kFlash1Ampere = 0.32, kFlash1Hopper = 0.2;
constexpr double kCudnnHopper = 0.55;

// What stacks offer: llm-foundry, composer v0.13.4 and v0.16.4, whose sharding_map has no hybrid; llm.c, ZeRO-1; llmq, one node
// and --shard-weights; fsdp, PyTorch's own, any device mesh and no tensor groups. Composer sums in each micro-step what FSDP wraps
// (composer@029483a, trainer/dist_strategy.py: only DistributedDataParallel is asked to wait for the last one).
constexpr std::array<Traits, kStacks> kTraits = {{
    {.stack = Stack::kSmp,
     .name = "smp",
     .held = kSmddpHeld,
     .hierarchical = true,
     .reduce_bytes = 2,
     .copies = true,
     .logit_bytes = 12.0},  // Hugging Face's loss: in fp32, shifted, and its softmax
    {.stack = Stack::kFoundry,
     .name = "llm-foundry",
     .offered = {Offered::Degrees::kOneOrAll, false, true},
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .sums_each_micro_step = true,
     .copies = true,
     .attention = kFlash1Ampere,
     .attention_hopper = kFlash1Hopper,
     .logit_bytes = 4.0},
    {.stack = Stack::kFms,
     .name = "fsdp",
     .offered = {Offered::Degrees::kAny, false, true},
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .copies = true},
    {.stack = Stack::kTitan,
     .name = "torchtitan",
     .offered = {Offered::Degrees::kAny, true, false},
     .held = kNcclHeld,
     .copies = true},
    {.stack = Stack::kMegatron,
     .name = "megatron",
     .offered = {Offered::Degrees::kAny, true, false},
     .fused = true,
     .held = kRegisteredHeld,
     .reduce_bytes = 2,
     .attention_hopper = kCudnnHopper,
     .shards_optimizer = true,
     .logit_bytes = 4.0},
    {.stack = Stack::kLlmq,
     .name = "llmq",
     .offered = {Offered::Degrees::kOneOrAll, false, true},
     .fused = true,
     .held = 0.0,
     .reduce_bytes = 2,
     .attention_hopper = kCudnnHopper,
     .selective = 0.0,
     .python = false,
     .state_bytes = 8.0,  // weights, gradient and both moments in bf16
     .optimizer_bytes = 4.0,
     .shards_optimizer = true,
     .logit_bytes = 1.0},  // in bf16 and in place, in two parts
    {.stack = Stack::kLlmc,
     .name = "llm.c",
     .offered = {Offered::Degrees::kOne, false, false},
     .fused = true,
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .attention_hopper = kCudnnHopper,
     .selective = 0.0,
     .python = false,
     .shards_optimizer = true,
     .logit_bytes = 2.0},
    {.stack = Stack::kInternLm,
     .name = "internlm",
     .offered = {Offered::Degrees::kOne, true, false},
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .attention = kFlash1Ampere,
     .attention_hopper = kFlash1Hopper,
     .shards_optimizer = true},
    {.stack = Stack::kMaxText,
     .name = "maxtext",
     .offered = {Offered::Degrees::kAny, true, false},
     .fused = true,
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .attention_hopper = kCudnnHopper,
     .logit_bytes = 4.0},
    {.stack = Stack::kPaxml,
     .name = "paxml",
     .offered = {Offered::Degrees::kAny, true, false},
     .fused = true,
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .attention_hopper = kCudnnHopper,
     .logit_bytes = 4.0},
    {.stack = Stack::kPaddle,
     .name = "paddle",
     .offered = {Offered::Degrees::kOne, true, false},
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .attention = kFlash1Ampere,
     .attention_hopper = kFlash1Hopper,
     .shards_optimizer = true},
    {.stack = Stack::kDeepSpeed,
     .name = "deepspeed",
     .offered = {Offered::Degrees::kOneOrAll, false, false},
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .copies = true},
    {.stack = Stack::kNeuron,
     .name = "neuron",
     .offered = {Offered::Degrees::kOne, true, false},
     .fused = true,
     .held = 0.0,  // engines of their own move data
     .overlaps = false,
     .attention = 0.3,
     .shards_optimizer = true,
     .logit_bytes = 4.0},
    {.stack = Stack::kNanotron,  // ZeRO-1 over replicas, tensor groups and 1F1B; FlashAttention 2
     .name = "nanotron",
     .offered = {Offered::Degrees::kOne, true, false},
     .published = false,
     .held = kNcclHeld,
     .shards_optimizer = true},
}};

struct Alias {
  std::string_view name;
  Stack stack;
};
constexpr Alias kAliases[] = {{"nxd", Stack::kNeuron}, {"xla", Stack::kMaxText}};

}  // namespace

bool Offered::includes(int64_t shard_degree, int64_t ranks, int per_node) const {
  switch (degrees) {
    case Degrees::kAny:
      return true;
    case Degrees::kNodeOrAll:
      return shard_degree == ranks || shard_degree == per_node;
    case Degrees::kOneOrAll:
      return shard_degree == ranks || shard_degree == 1;
    case Degrees::kOne:
      return shard_degree == 1;
  }
  return false;
}

const Traits& traits(Stack stack) {
  return kTraits[static_cast<size_t>(stack)];
}

std::optional<Stack> find_stack(std::string_view name) {
  for (const Traits& one : kTraits)
    if (name == one.name) return one.stack;
  for (const Alias& alias : kAliases)
    if (name == alias.name) return alias.stack;
  return std::nullopt;
}

std::string stack_names() {
  std::string names;
  for (const Traits& one : kTraits) {
    if (!names.empty()) names += ", ";
    names += one.name;
  }
  return names;
}

const Constants& fitted_constants() {
  static constexpr Constants kFitted = {.gemm = {0.8488, 0.6817, 0.6027},
                                        .narrow = 96.23,
                                        .attention = 0.8848,
                                        .elementwise = 2.7724,
                                        .fused = 0.4387,
                                        .fp8 = 0.8541,
                                        .network = 0.6880,
                                        .link = 0.7863,
                                        .straggle = 0.004765,
                                        .host_seconds = 0.03402,
                                        .making = {1.0176, 1.0178, 1.0556, 0.9946, 0.9568, 1.0375, 1.0116,
                                                   1.0062, 1.0361, 0.9139, 1.0133, 0.9691, 0.9889, 1.0000}};
  return kFitted;
}

}  // namespace shardrun::launcher
