// What software makes of a machine: the few constants that predictions are fitted with.
//
// Fitted on published runs only (tests/unit/forecast/published, a file for each publication), by the test that also leaves
// every publication out once and predicts it from the others. Decisions 0022 and 0074 say why these constants.
// Thread rule: plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/forecast/machine.h"

namespace shardrun::launcher {

// Programs whose kernels and collectives are of one making.
enum class Stack {
  kSmp,
  kFoundry,
  kFms,
  kTitan,
  kMegatron,
  kLlmq,
  kLlmc,
  kInternLm,
  kMaxText,
  kPaxml,
  kPaddle,
  kDeepSpeed,
  kNeuron,
  kNanotron
};
inline constexpr int kStacks = 14;

struct Constants {
  std::array<double, kGenerations> gemm{0.75, 0.70, 0.55};  // share of the peak that large products reach
  double narrow = 64.0;        // columns that a product of matrices loses, whatever its width
  double attention = 1.0;      // speed of attention, relative to Traits
  double elementwise = 1.5;    // passes over activations, relative to those that step.cpp counts
  double fused = 0.5;          // what fusing leaves of them
  double fp8 = 0.75;           // of the fp8 peak's gain
  double network = 0.75;       // share of the network's rate that flat rings reach
  double link = 0.8;           // share of a link's rate inside a node: 370 of 450 GB/s measured with NCCL
  double straggle = 0.006;     // a step lasts longer by this for each doubling of nodes
  double host_seconds = 0.05;  // of a step: optimizer launches, norms, the next batch
  std::array<double, kStacks> making{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};  // speed of kernels, by stack
  // Stated: the published rows say little of it.
  double network_by_node = 0.85;  // share of it that collectives by node reach
};

// What the users of a stack can choose of a layout.
struct Offered {
  enum class Degrees { kAny, kNodeOrAll, kOneOrAll, kOne };
  Degrees degrees = Degrees::kAny;
  bool tensor = true, activation_offload = true;

  // Whether copies of the state may be shared by so many of the ranks that have copies.
  bool includes(int64_t shard_degree, int64_t ranks, int per_node) const;
};

// The traits of a stack that its documentation or sources state; nothing here is fitted.
struct Traits {
  Stack stack = Stack::kFms;
  const char* name = "";
  Offered offered = {};
  bool published = true;      // runs of it were, and its speed is fitted on them
  bool fused = false;         // a compiler or hand-written kernels fuse what stands between matrix products
  double held = 0.2;          // share of multiprocessors that collectives keep from kernels while they run
  bool hierarchical = false;  // collectives by node, else flat rings
  bool overlaps = true;       // gradients are reduced while others are computed, else behind the last of them
  int reduce_bytes = 4;       // of a gradient element that is reduced
  // Copies of the state sum their gradients in every micro-step, and not in the last one alone.
  bool sums_each_micro_step = false;
  bool copies = false;     // flat buffers stand between collectives and kernels
  double attention = 0.6;  // share of the peak that its attention reaches on Ampere
  double attention_hopper = 0.35;
  // Times that each score of attention is read or written, in backward twice as often; 0: it never leaves the chip.
  double score_passes = 0.0;
  double selective = 0.5;  // share of matrix products that selective checkpointing computes again
  // Whether forward products start on the first part of what a tensor group exchanges.
  bool asynchronous_tensor = false;
  bool python = true;             // drives the step from an interpreter
  double state_bytes = 16.0;      // of a parameter, all that lasts from step to step
  double optimizer_bytes = 12.0;  // of them, master and moments
  bool shards_optimizer = false;  // over all ranks, also where the weights are whole
  double logit_bytes = 8.0;       // of a logit: what the loss and its gradient hold at once
  // With moments on the host: both directions of the way and the update at once; no bf16 copy of a rank's own weights,
  // which are made from the masters wherever a block is gathered.
  bool streams_moments = false;
  // Whether layers in fp8 are as decision 0033 has them: gathered in bf16; inputs, weights and gradients are quantized where they
  // are used, by the scales of earlier steps, and nothing of fp8 waits for backward.
  bool delayed_scales = false;
};

const Traits& traits(Stack stack);
// Also by what else it is called: "nxd" is neuron's, "xla" as MaxText has it.
std::optional<Stack> find_stack(std::string_view name);
// "smp, llm-foundry, …"
std::string stack_names();
const Constants& fitted_constants();

}  // namespace shardrun::launcher
