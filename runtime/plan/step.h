// StepPlan: the schedule of an optimizer step, what one rank's main thread does with the model's blocks, event by event.
// The sharding engine executes the events and a forecast times them; nobody else decides what comes when. They follow
// from a StepShape alone, so that all ranks have the same ones. An event is worked out when it is asked for: a step may
// have any number of micro-steps, and a plan holds no more than what its buffers hold.
//
//   Two ranks, blocks 0 and 1, one gathered ahead:
//     gather 0 into slot 0, gather 1 into slot 1, await slot 0
//     forward 0; await slot 1; forward 1
//     backward 1 into gradient 0; reduce gradient 0
//     backward 0 into gradient 1; reduce gradient 1
//     await gradient 0, await gradient 1
//
// A stage of a pipeline has the turns of pipeline.h, which stand in the place of micro-steps here: each is forward, or backward,
// or on the last stage both, as without a pipeline, and visits the blocks of one of the stage's chunks.
//
// Gathers. A block that a slot still holds is not gathered again: the turn to backward costs nothing, and turns share blocks. Which
// slots a block may have BufferCounts says: embedding and head take none of a layer's. Nothing
// is held when a step begins. The next `prefetch` visits of a turn have their blocks gathered before a visit; with a slot each, once.
// The last backward of a table that is only looked up has none: in earlier micro-steps the next forward finds what was gathered.
// Contributions. Gradient buffers are used in turn; a buffer's reduction is awaited when the buffer is needed again. The
// first reduction of a block lands in the rank's shard, later ones in a scratch, from which they are added. A rank alone
// writes and adds into its shard at once. The shard is summed over replicas after its last contribution: accumulation
// costs the replicas nothing.
//
// Thread rule: plain values; a plan is thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/plan/pipeline.h"
#include "runtime/plan/sharded_state.h"

namespace shardrun::plan {

struct StepShape {
  std::vector<int> visits;  // blocks in the order of forward's uses; one with tied weights comes twice
  Stage stage{};            // whose blocks those are
  std::vector<int>
      chunks;  // where in `visits` each of its chunks begins, and the end of the last; empty: there is one
  int64_t micro_steps = 1;
  bool backward = true;  // false: forward only, as in a validation
  int prefetch = 1;
  // Without gathered ones a rank computes with its shard, without gradients it is alone.
  BufferCounts buffers;
  bool replicated = false;
  std::vector<bool> stays;  // BlockShards::stays, by block; empty: none
  bool looks_up = false;    // the backward of visit 0 reads no parameters
  // With units of several blocks (wrapping.h) in the place of blocks: the model's number of each visit's first; empty: its own.
  std::vector<int> numbers;
};

struct StepEvent {
  enum class Kind : uint8_t {
    kGather,         // starts: `block` into `slot`
    kAwaitGather,    // of `block` into `slot`
    kForward,        // of `visit`: `block`, from `slot`
    kBackward,       // of `visit`: `block`, from `slot`, if it reads any parameters, into `gradient`
    kReduce,         // starts: `gradient` of `block` into `scratch`
    kAwaitReduce,    // of `gradient`
    kAdd,            // `scratch` into the shard of `block`
    kSumReplicas,    // starts: the shard of `block`
    kAwaitReplicas,  // of `block`
    kTurnEnds,
  };

  Kind kind = Kind::kTurnEnds;
  bool adds = false;  // kBackward: `gradient` holds earlier contributions, to which this one is added
  int block = -1, visit = -1;
  int slot = -1, gradient = -1, scratch = -1;  // numbers of buffers; -1: the rank's own shard

  friend bool operator==(const StepEvent&, const StepEvent&) = default;
};

class StepPlan {
 public:
  // No visits, and buffers that are too few, are bugs (CHECK).
  explicit StepPlan(StepShape shape);
  // Returns the event that comes next; nullopt after the last.
  std::optional<StepEvent> next();

 private:
  struct Slot {
    int block = -1;
    bool awaited = false;
  };
  struct Reduction {
    int block = -1, scratch = -1;
    bool last = false;
  };

  void advance();
  void begin_turn();
  void visit(size_t place);
  // Of a visit of the turn's chunk.
  int number(size_t visit) const {
    const size_t of_all = first_visit_ + visit;
    return shape_.numbers.empty() ? static_cast<int>(of_all) : shape_.numbers[of_all];
  }
  bool stays(int block) const { return !shape_.stays.empty() && shape_.stays[block]; }
  int gathered(size_t place);
  bool reads(size_t place) const;
  bool gather(int block, int used, std::span<const int> ahead);
  int slot_of(int block) const;
  int free_slot(int block, int used, std::span<const int> ahead) const;
  void backward(int block, int visit, int slot, bool last);
  int free_scratch();
  void complete(size_t gradient);
  void sum_over_replicas(int block);
  void close();
  size_t after(size_t gradient) const { return (gradient + 1) % reductions_.size(); }

  StepShape shape_;
  Turns turns_;
  std::optional<Turn> turn_;  // nullopt: all are over
  size_t first_visit_ = 0;    // of the turn's chunk, which has as many as follow
  size_t chunk_visits_ = 0;
  std::vector<int> order_;  // blocks by visit of the turn, forward's and then backward's
  size_t place_ = 0;        // of order_, of the visit that comes next
  bool closed_ = false;
  std::vector<StepEvent> ready_;  // worked out, of which the first taken_ were returned
  size_t taken_ = 0;
  std::vector<Slot> slots_;
  std::vector<Reduction> reductions_;  // in flight, by gradient buffer
  size_t next_gradient_ = 0;
  std::vector<bool> has_gradient_;  // by block, of this step
  std::vector<int> summed_;         // blocks whose sums over replicas were started
};

}  // namespace shardrun::plan
