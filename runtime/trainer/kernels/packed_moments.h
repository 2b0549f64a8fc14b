// AdamW's moments in 8 bits, on a CPU: blocks of 256 elements, each with one scale, an element being the number of a value of the
// dynamic map (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"): seven decades below 1, with more values the
// nearer to 1; of both signs for the first moment, of none for the second.
//
// A block's scale is its element of largest magnitude, with its sign, so that this element is the map's 1 and exact. What was packed
// is therefore packed to the same bits again. Blocks begin at multiples of 256 of a flat shard; zero bytes are zero moments.
// Thread rule: thread-safe for different blocks; the OpenMP threads of the calling thread are used. The bits do not depend on their
// number. Tests: tests/unit/optim/packed_adamw_test.cpp.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/plan/optimizer_state.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels {

enum class MomentMap { kSigned, kUnsigned };  // of the first moment, and of the second

// Returns the map's 256 values in ascending order.
std::span<const float> values_of(MomentMap map);

// One moment of a flat shard.
struct PackedMoment {
  MomentMap map = MomentMap::kSigned;
  uint8_t* codes = nullptr;  // for each element
  float* scales = nullptr;   // for each block
};
// Writes the elements from `first` on.
void unpack(const PackedMoment& moment, int64_t first, std::span<float> values);
// Packs all elements of the shard.
void pack(const PackedMoment& moment, std::span<const float> values);

// Elements [begin, begin + count) of the flat shard, with the same decay.
struct DecayRange {
  int64_t begin = 0, count = 0;
  float weight_decay = 0.0F;
};
// AdamW (OptimizerOps::adamw_step) of the elements in `ranges`, which ascend; the moments of others are zero and stay so. A block is
// unpacked, updated and packed again. parameters.weight_decay is not looked at.
void packed_adamw_step(std::span<float> master, const PackedMoment& moment1, const PackedMoment& moment2,
                       std::span<const float> gradient, std::span<const DecayRange> ranges,
                       const AdamWParameters& parameters);

}  // namespace shardrun::kernels
