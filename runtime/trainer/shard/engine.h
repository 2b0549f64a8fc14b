// Engine: holds a rank's shards of the model and executes the schedule of a step (runtime/plan/step.h), between the
// computations of whoever calls it. A block's fp32 master parameters and gradients are cut into shard-group-size equal
// parts; a rank owns one of them in every block.
//
//   begin(plan); then as often as the plan has turns: next() until it has no more work, computing what it returns;
//   then finish(), and gradient() holds the sum over all ranks and micro-steps. publish() with every change of masters.
//
// The engine decides nothing: which block is gathered when and into which buffer, and what is reduced where and when, is
// the plan's. It knows how: an all-gather of the compute-dtype shards into a buffer, or of masters that are converted in
// it; a rank alone that keeps no copy in the compute dtype has a buffer to convert each block into. The bits are the same.
//
// Parameters that are never trained (a model's frozen blocks) are cut in the same way: a rank has its part in the compute dtype
// alone, and it is gathered behind the block's other parameters.
//
// Blocks that are a unit (plan::StateOptions::wrapping) are one to the plan: gathered and reduced together. They are computed one by
// one, each from a buffer of its own, in which the parts of all ranks come together, and into another one.
//
// A block that stays (plan::BlockShards) is neither: each rank computes with its own part of it, and writes that part's gradient.
//
// Gathers, reductions and replica sums use separate communicators so that none waits for another.
//
// Errors: whatever the communicators report; afterwards only destruction is allowed, and the communicators
// must be destroyed before the arena, because an operation in flight still names memory of it.
// On a GPU nothing here waits for it: the communicators and the ops order themselves (comm/communicator.h).
// Determinism: sums run along the tree of group ranks inside a contribution and in the order of contributions after that. With
// EngineOptions::reduce they run in bf16 over ranks (docs/decisions/0126) and in fp32 over contributions.
// Thread rule: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/shard_layout.h"
#include "runtime/plan/sharded_state.h"
#include "runtime/plan/step.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/ops.h"
#include "runtime/trainer/shard/arena.h"

namespace shardrun::shard {

using base::Result;

struct EngineOptions {
  plan::StateOptions state;  // which buffers it has
  // In which gradients are summed over ranks; in bf16 they are rounded where they lie, and widened there again.
  base::DType reduce = base::DType::kFp32;
  // The backend of the arena, of the communicators and of who computes.
  kernels::Backend* backend = &kernels::cpu_backend();
};

// The groups of one rank. `gather` and `reduce` span the shard group; `replica` spans the ranks that own the same
// shard of other copies, and is null when there is one copy.
struct EngineGroups {
  comm::Communicator* gather = nullptr;
  comm::Communicator* reduce = nullptr;
  comm::Communicator* replica = nullptr;
};

// What comes next to compute: forward or backward of a visit of a block.
struct Work {
  bool is_forward = true;
  int block = 0, visit = 0;
  // The block's flat parameters in the compute dtype, without padding; of a block that stays, this rank's; none where a backward
  // reads none. They and `gradient` are valid until next().
  std::span<const std::byte> parameters;
  std::span<const std::byte> frozen;  // the same of what is frozen in it
  // In a backward: where the contribution to the block's gradient goes; as long as the block.
  std::span<float> gradient;
  // Whether `gradient` holds earlier contributions, to which this one is added; else it is written over.
  bool adds = false;
};

class Engine {
 public:
  // Takes plan::sharded_state() from the arena. Communicators and the arena outlive the engine (see Errors for their
  // order); layout.group_size is the shard group's size. `frozen`: of the same blocks, or of none.
  Engine(plan::ShardLayout layout, const EngineOptions& options, const EngineGroups& groups, Arena& arena,
         plan::ShardLayout frozen = {});

  const plan::ShardLayout& layout() const { return layout_; }
  // The rank's flat shards, layout().flat_shard_elements long. Padding stays zero. master() before settle(), where changes are yet
  // to be made, is a bug (CHECK).
  std::span<float> master();
  std::span<float> gradient() { return gradient_; }
  const plan::ShardLayout& frozen_layout() const { return frozen_layout_; }
  // The rank's shards of what is frozen, in the compute dtype; may be written between plans.
  std::span<std::byte> frozen() { return frozen_; }
  // Call after every change of master(), between plans. Their copy in the compute dtype is made unit by unit, each when it is next
  // gathered or computed with: the links carry the first one while later ones are made.
  void publish();
  // Does the same for a change that is yet to be made: `change` is called once for each unit, with where its part of the flat
  // shard begins and how long that is, before the unit is next gathered or computed with. Those that are left when a gather is first
  // waited for are changed then: the links carry the first units while later ones are changed. gradient() is kept until then.
  using Change = std::function<void(int64_t begin, int64_t count)>;
  void publish(Change change);
  // Makes what is left of that change.
  void settle();

  // Starts a plan that was made for this rank's buffers and groups. Whatever gradient() held is forgotten, once nothing is left to
  // change.
  void begin(plan::StepPlan plan);
  // Executes the plan up to the next computation, or nullopt: to the end of a turn, which without stages is a micro-step.
  Result<std::optional<Work>> next();
  // Executes what is left of the plan after its last turn.
  Result<void> finish();

 private:
  struct ParameterSlot {
    std::span<std::byte> memory;
    std::optional<comm::Pending> pending, frozen_pending;
  };
  struct GradientBuffer {
    std::span<float> memory;
    std::optional<comm::Pending> pending;
    std::span<float> sum;  // where it goes
  };

  Work work(const plan::StepEvent& event, int block);
  std::optional<Work> next_of_unit();
  Result<void> execute(const plan::StepEvent& event);
  Result<void> gather(const plan::StepEvent& event);
  Result<void> await_gather(const plan::StepEvent& event);
  Result<void> reduce(const plan::StepEvent& event);
  Result<void> await_reduce(const plan::StepEvent& event);
  void add(const plan::StepEvent& event);
  Result<void> sum_over_replicas(int block);
  Result<void> await_replicas(int block);
  std::span<comm::Bf16> narrow(std::span<float> values) const;
  void widen(std::span<float> values) const;
  Result<std::optional<comm::Pending>> gather(std::span<const std::byte> mine, std::span<std::byte> to);
  Result<void> await(std::optional<comm::Pending>& pending, int block);
  bool is_empty(int unit) const { return units_.block(unit).elements == 0; }
  bool is_apart(int unit) const;
  std::span<const std::byte> whole(int block, int unit, std::span<const std::byte> gathered);
  void spread_gradient();
  void change_masters(int unit);
  void narrow_masters(int unit);
  std::span<const std::byte> compute_shard(const plan::BlockShards& shards) const;
  std::span<const std::byte> frozen_shard(const plan::BlockShards& shards) const;
  std::span<const std::byte> frozen_block(int block, int unit, int slot) const;
  std::span<const std::byte> converted_shard(int unit, std::span<std::byte> whole) const;
  std::span<float> gradient_shard(const plan::BlockShards& shards);

  plan::ShardLayout layout_, frozen_layout_;
  plan::ShardLayout units_, frozen_units_;  // the same of units
  EngineOptions options_;
  EngineGroups groups_;
  std::span<float> master_, gradient_;
  std::span<uint16_t> half_;   // master_ as bf16; empty when fp32 is computed with, or no copy is kept
  Change change_;              // null: there is none to be made
  std::vector<bool> changed_;  // by unit, of that change
  std::vector<bool> narrow_;   // by unit: whether half_ has what master_ has
  std::span<std::byte> frozen_;
  std::vector<ParameterSlot> slots_;
  std::vector<GradientBuffer> gradients_;  // of whole blocks
  std::vector<std::span<float>> scratches_;
  std::span<std::byte> unit_block_;  // ShardedState
  std::span<float> unit_gradient_;
  std::optional<plan::StepEvent> computed_;  // whose unit has blocks left, of which the next is next_block_
  int next_block_ = 0;
  std::deque<comm::Pending> replica_sums_;  // oldest first
  std::optional<plan::StepPlan> plan_;      // from begin() to finish()
  bool published_ = false;
};

}  // namespace shardrun::shard
