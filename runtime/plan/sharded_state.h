// ShardedState: the buffers that a rank holds of a sharded model, but for its optimizer's. The sharding engine takes
// exactly these from its arena, and a plan of memory adds up their bytes. Pure arithmetic.
//
//   masters, gradients   fp32, the rank's shards of all blocks (shard_layout.h)
//   compute_copy         the masters in bf16; none when fp32 is computed with, or each block is converted where it is
//                        gathered
//   frozen               the rank's shards of weights that are never changed, in the compute dtype; mostly none
//   gathered             whole blocks in the compute dtype: one for each when they are kept, or prefetch + 1 are as many;
//                        else prefetch + 1 in which layers take turns and one for embedding and head, so that neither takes a layer's place
//                        nor makes room for layers as large as itself; what is frozen of a block lies behind what is
//                        trained, with its padding. A rank alone computes with its own shard; it has one only to
//                        convert masters into.
//   whole_gradients      fp32 gradients of whole blocks, one being reduced while the next is computed; a rank alone
//                        writes into its gradients
//   scratches            where a reduced shard arrives that is added to an earlier contribution
//   unit_block, unit_gradient   with units of several blocks (wrapping.h): the block that is computed, in its own order
//
// Gathered blocks, whole gradients and scratches are of units.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/shard_layout.h"
#include "runtime/plan/wrapping.h"

namespace shardrun::plan {

// What every buffer begins at a multiple of: a cache line.
inline constexpr int64_t kBufferAlignment = 64;

constexpr int64_t aligned_bytes(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

struct Buffer {
  int64_t elements = 0, element_bytes = 4;

  int64_t bytes() const { return aligned_bytes(elements * element_bytes); }
  friend bool operator==(const Buffer&, const Buffer&) = default;
};

struct StateOptions {
  int64_t compute_bytes = 4;  // of a parameter that is computed with: 4 in fp32, as masters are; 2 in bf16
  int prefetch = 1;           // blocks that are gathered ahead
  bool accumulates = false;   // whether blocks get contributions from more than one micro-step
  bool revisits = false;      // whether one block gets two in a micro-step
  bool keeps_parameters = false;   // whether gathered blocks stay for a whole optimizer step
  bool keeps_compute_copy = true;  // of the masters, when the compute dtype is not theirs
  Wrapping wrapping{};             // of the blocks, in a group of any size
  // The blocks that are layers, between embedding and head; empty: all are.
  BlockRange layers{};
  bool tied = false;  // embedding and head are computed with at once

  // Whether masters become parameters block by block, where they are gathered.
  bool converts() const { return compute_bytes != 4 && !keeps_compute_copy; }
};

// Buffers for gathered units [first, last).
struct SlotRange {
  int first = 0, last = 0;

  friend bool operator==(const SlotRange&, const SlotRange&) = default;
};

// The numbers of gathered ones, whole gradients and scratches.
struct BufferCounts {
  int gathered = 0, whole_gradients = 0, scratches = 0;
  std::vector<SlotRange> slots;  // by unit, which ones it is gathered into; empty: any

  friend bool operator==(const BufferCounts&, const BufferCounts&) = default;
};

// `units` of a model's blocks.
BufferCounts buffer_counts(int group_size, int units, const StateOptions& options);

struct ShardedState {
  Buffer masters, gradients, compute_copy, frozen;
  Buffer unit_block, unit_gradient;
  std::vector<Buffer> gathered, whole_gradients, scratches;

  // Returns the bytes of the last two lines: what is held beside the rank's own shards.
  int64_t block_bytes() const;
  int64_t bytes() const;
};

// `frozen_blocks`: of the same blocks in the same group, or of none.
ShardedState sharded_state(const ShardLayout& blocks, const StateOptions& options,
                           const ShardLayout& frozen_blocks = {});

}  // namespace shardrun::plan
