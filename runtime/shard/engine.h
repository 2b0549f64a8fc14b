// Engine: full_shard. Every rank owns 1/group_size of each block's fp32 master parameters and gradients; a
// whole block exists only while it is used.
//
//   parameters  acquire(b, next): all-gather of the compute-dtype shards into one of `prefetch`+1 buffers, each
//               tagged {block, version}. The gather of `next` is started before acquire returns, so that it
//               runs while the caller computes with b. A buffer whose tag still fits is used again without a
//               gather.
//   gradients   gradient_buffer(b) hands out one of two full-block fp32 buffers; reduce(b) starts a reduce-scatter
//               of it, which runs while the caller computes the previous block's backward.
//   version     publish() after an optimizer step converts the masters and makes every tag stale.
//
// Gathers and reductions use separate communicators so that neither waits for the other. In a group of one
// there is no communicator traffic and no copy: acquire returns the rank's own shard, and the first
// micro-step's gradients are written straight into the gradient shard.
//
// One micro-step: begin_micro_step; acquire/release per block forward; then per block backward acquire,
// gradient_buffer, (compute), release, reduce; after the last micro-step finish_reductions.
//
// Errors: whatever the communicators report; afterwards only destruction is allowed, and the communicators
// must be destroyed before the arena, because an operation in flight still names memory of it.
// Determinism: sums run in group-rank order inside a micro-step and in micro-step order after that.
// Thread rule: thread-compatible.
// Source: FSDP (Zhao et al. 2023); the tagged double buffer follows llmq's doc.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/result.h"
#include "runtime/comm/communicator.h"
#include "runtime/kernels/ops.h"
#include "runtime/shard/arena.h"
#include "runtime/shard/layout.h"

namespace shardrun::shard {

using base::Result;

struct EngineOptions {
  kernels::DType compute = kernels::DType::kFp32;
  int prefetch = 1;          // 0 or 1 blocks ahead
  bool accumulates = false;  // whether an optimizer step has more than one micro-step
};

class Engine {
 public:
  // Bytes that the constructor takes from the arena.
  static int64_t planned_bytes(const ShardLayout& layout, const EngineOptions& options);
  // Communicators of layout.group_size ranks and the arena outlive the engine (see Errors for their order).
  Engine(ShardLayout layout, const EngineOptions& options, comm::Communicator& gather,
         comm::Communicator& reduce, Arena& arena);

  const ShardLayout& layout() const { return layout_; }
  // The rank's flat shards, layout().flat_shard_elements long. Padding stays zero.
  std::span<float> master() { return master_; }
  std::span<float> gradient() { return gradient_; }
  // Call after every change of master().
  void publish();

  // The block's flat parameters in the compute dtype, without padding. Valid until release(block). One block
  // is acquired at a time. `next_block` is the block that the caller will acquire next, or -1.
  Result<std::span<const std::byte>> acquire(int block, int next_block);
  void release(int block);

  // `first` micro-step of an optimizer step: gradients replace, else add.
  void begin_micro_step(bool first);
  // Where the caller writes the block's whole gradient, block.elements long; followed by reduce(block).
  Result<std::span<float>> gradient_buffer(int block);
  Result<void> reduce(int block);
  // Afterwards gradient() holds the sum over ranks and micro-steps.
  Result<void> finish_reductions();

 private:
  struct ParameterSlot {
    std::span<std::byte> memory;
    int block = -1;
    int64_t version = -1;
    std::optional<comm::Pending> pending;
  };
  struct GradientSlot {
    std::span<float> full;     // largest padded block
    std::span<float> scratch;  // largest shard; empty unless the engine accumulates
    int block = -1;
    bool adds = false;  // the result lands in `scratch` and is added
    std::optional<comm::Pending> pending;
  };

  bool alone() const { return layout_.group_size == 1; }
  std::span<const std::byte> compute_shard(int block) const;
  std::span<float> gradient_shard(int block);
  ParameterSlot* find_slot(int block);
  Result<void> start_gather(int block);
  Result<void> complete(GradientSlot& slot);

  ShardLayout layout_;
  EngineOptions options_;
  comm::Communicator& gather_;
  comm::Communicator& reduce_;
  std::span<float> master_, gradient_;
  std::span<uint16_t> half_;  // master_ as bf16; empty when the compute dtype is fp32
  std::array<ParameterSlot, 2> parameter_slots_;
  std::array<GradientSlot, 2> gradient_slots_;
  int64_t version_ = 0;
  int acquired_block_ = -1;
  bool adds_ = false;
  int next_gradient_slot_ = 0;
};

}  // namespace shardrun::shard
