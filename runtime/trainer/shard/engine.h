// Engine: who holds which parameters when. A block's fp32 master parameters and gradients are cut into
// shard-group-size equal parts; a rank owns one of them in every block.
//
//   strategy       shard group    replica group   a gathered block
//   full_shard     all ranks      one rank        lives while it is used, in one of prefetch+1 buffers
//   hybrid_shard   some ranks     the others      as full_shard
//   shard_grad_op  all ranks      one rank        is kept for the whole optimizer step (keeps_parameters)
//   no_shard       one rank       all ranks       is the rank's own copy: no gather, no buffer
//
//   parameters  acquire(b, upcoming): all-gather of the compute-dtype shards into a buffer tagged {block, version}.
//               Gathers of the first `prefetch` upcoming blocks are started before acquire returns, so that they run
//               while the caller computes with b. A buffer whose tag still fits is used again without a gather.
//   gradients   gradient_buffer(b) hands out one of two full-block fp32 buffers; reduce(b) starts a reduce-scatter
//               of it inside the shard group, which runs while the caller computes the previous block's backward.
//               A rank alone writes into its gradient at once, and adds every later contribution there itself.
//               With replicas, a block's shard is summed over them once in an optimizer step, after its last
//               contribution: accumulation costs the replica group nothing.
//   version     publish() after an optimizer step converts the masters and makes every tag stale. Without a copy in the
//               compute dtype (keeps_compute_copy) each block's masters are converted where it is gathered, into its
//               buffer; a rank alone has one buffer for that. The bits are the same.
//
// Gathers, reductions and replica sums use separate communicators so that none waits for another.
//
// One micro-step: begin_micro_step; acquire/release per visit forward; then per visit backward acquire,
// gradient_buffer, (compute), release, reduce; after the last micro-step finish_reductions. A block that is visited
// twice in a backward (tied embeddings) is reduced twice and its contributions are added.
//
// Errors: whatever the communicators report; afterwards only destruction is allowed, and the communicators
// must be destroyed before the arena, because an operation in flight still names memory of it.
// On a GPU nothing here waits for it: the communicators and the ops order themselves (comm/communicator.h).
// Determinism: sums run in group-rank order inside a contribution and in the order of contributions after that.
// Thread rule: thread-compatible.
// Source: FSDP (Zhao et al. 2023), ZeRO (Rajbhandari et al. 2020); the tagged buffers follow llmq's doc.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/shard_layout.h"
#include "runtime/plan/sharded_state.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/ops.h"
#include "runtime/trainer/shard/arena.h"

namespace shardrun::shard {

using base::Result;

struct EngineOptions {
  kernels::DType compute = kernels::DType::kFp32;
  int prefetch = 1;                // blocks ahead
  bool accumulates = false;        // whether blocks get contributions from more than one micro-step
  bool revisits = false;           // whether one block gets two in a micro-step
  bool keeps_parameters = false;   // gathered blocks stay until publish()
  bool keeps_compute_copy = true;  // of the masters, when the compute dtype is not theirs
  kernels::Backend* backend =
      &kernels::cpu_backend();  // of the arena, of the communicators and of who computes

  plan::StateOptions state() const {
    return {kernels::size_of(compute), prefetch, accumulates, revisits, keeps_parameters, keeps_compute_copy};
  }
};

// The groups of one rank. `gather` and `reduce` span the shard group; `replica` spans the ranks that own the same
// shard of other copies, and is null when there is one copy.
struct EngineGroups {
  comm::Communicator* gather = nullptr;
  comm::Communicator* reduce = nullptr;
  comm::Communicator* replica = nullptr;
};

// Where a contribution to a block's gradient goes, block.elements long.
struct GradientBuffer {
  std::span<float> values;
  bool accumulate =
      false;  // `values` holds earlier contributions, to which the caller adds; else it writes over them
};

class Engine {
 public:
  // Takes plan::sharded_state() from the arena. Communicators and the arena outlive the engine (see Errors for their order); layout.group_size is the shard
  // group's size.
  Engine(plan::ShardLayout layout, const EngineOptions& options, const EngineGroups& groups, Arena& arena);

  const plan::ShardLayout& layout() const { return layout_; }
  // The rank's flat shards, layout().flat_shard_elements long. Padding stays zero.
  std::span<float> master() { return master_; }
  std::span<float> gradient() { return gradient_; }
  // Call after every change of master().
  void publish();

  // The block's flat parameters in the compute dtype, without padding. Valid until release(block). One block
  // is acquired at a time. `upcoming`: the blocks that the caller will acquire next, in order.
  Result<std::span<const std::byte>> acquire(int block, std::span<const int> upcoming);
  void release(int block);

  // The `first` micro-step of an optimizer step forgets the gradients of the one before.
  void begin_micro_step(bool first);
  // Followed by reduce(block).
  Result<GradientBuffer> gradient_buffer(int block);
  // `last`: no more of this block comes in this optimizer step.
  Result<void> reduce(int block, bool last);
  // Afterwards gradient() holds the sum over all ranks and micro-steps.
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
    std::span<float> scratch;  // largest shard; empty unless contributions are added
    int block = -1;
    bool adds = false;  // the result lands in `scratch` and is added
    bool last = false;
    std::optional<comm::Pending> pending;
  };

  bool alone() const { return layout_.group_size == 1; }
  std::span<const std::byte> compute_shard(int block) const;
  std::span<const std::byte> converted_shard(int block, std::span<std::byte> whole) const;
  std::span<const std::byte> converted_alone(int block);
  std::span<float> gradient_shard(int block);
  ParameterSlot* find_slot(int block);
  ParameterSlot* free_slot(int block, std::span<const int> upcoming);
  Result<bool> start_gather(int block, std::span<const int> upcoming);
  Result<void> complete(GradientSlot& slot);
  Result<void> sum_over_replicas(int block);

  plan::ShardLayout layout_;
  EngineOptions options_;
  EngineGroups groups_;
  std::span<float> master_, gradient_;
  std::span<uint16_t> half_;  // master_ as bf16; empty when the compute dtype is fp32, or no copy is kept
  std::vector<ParameterSlot> parameter_slots_;
  std::array<GradientSlot, 2> gradient_slots_;
  std::vector<comm::Pending> replica_sums_;
  std::vector<bool> has_gradient_;  // of this optimizer step, by block
  int64_t version_ = 0;
  int acquired_block_ = -1;
  int next_gradient_slot_ = 0;
};

}  // namespace shardrun::shard
