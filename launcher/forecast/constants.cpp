#include "launcher/forecast/constants.h"

namespace shardrun::launcher {
namespace {

// Multiprocessors held: NCCL's channels of 108 (A100), SMDDP's fewer than 9.
constexpr double kNcclHeld = 24.0 / 108.0, kSmddpHeld = 9.0 / 108.0;

constexpr std::array<Traits, kStacks> kTraits = {{
    {.stack = Stack::kSmp, .name = "smp", .held = kSmddpHeld, .hierarchical = true, .reduce_bytes = 2},
    {.stack = Stack::kFoundry, .name = "llm-foundry", .held = kNcclHeld, .reduce_bytes = 2},
    {.stack = Stack::kFms, .name = "fsdp", .held = kNcclHeld, .reduce_bytes = 2},
    {.stack = Stack::kTitan, .name = "torchtitan", .held = kNcclHeld},
    {.stack = Stack::kMegatron,
     .name = "megatron",
     .fused = true,
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .attention_hopper = 0.55},
    {.stack = Stack::kLlmq,
     .name = "llmq",
     .fused = true,
     .held = 0.0,
     .reduce_bytes = 2,
     .attention_hopper = 0.55,
     .selective = 0.0,
     .python = false},
    {.stack = Stack::kLlmc,
     .name = "llm.c",
     .fused = true,
     .held = kNcclHeld,
     .reduce_bytes = 2,
     .attention_hopper = 0.55,
     .selective = 0.0,
     .python = false},
}};

}  // namespace

const Traits& traits(Stack stack) {
  return kTraits[static_cast<size_t>(stack)];
}

std::optional<Stack> find_stack(std::string_view name) {
  for (const Traits& one : kTraits)
    if (name == one.name) return one.stack;
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
  static constexpr Constants kFitted = {.gemm_ampere = 0.8113,
                                        .gemm_hopper = 0.6571,
                                        .elementwise = 1.4103,
                                        .fused = 0.4735,
                                        .fp8 = 0.8098,
                                        .network = 0.6977,
                                        .network_by_node = 0.8615,
                                        .held = 1.5139,
                                        .straggle = 0.0058,
                                        .host_seconds = 0.1197,
                                        .making = {0.9996, 0.9902, 1.0215, 0.9592, 1.0223, 1.0688, 0.9712}};
  return kFitted;
}

}  // namespace shardrun::launcher
