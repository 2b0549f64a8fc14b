// Converts fp32 to bf16 and back, one value at a time: to nearest even, or stochastically by a
// counter-based random number.
//
// The functions are constexpr, so that the same lines run on a GPU (nvcc --expt-relaxed-constexpr) and in unit tests
// without one. Stochastic rounding goes up with the probability of the part that is cut off, so the mean of many
// updates is not lost below half a unit (Gupta et al. 2015); which way an element goes depends on (key, element) alone.
//
// Thread rule: pure functions.
// Tests: tests/unit/kernels/cuda_logic_test.cpp.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/base/counter_random.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels::cuda {

constexpr float widened(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

constexpr Bf16 nearest(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U)
    return {static_cast<uint16_t>((bits >> 16) | 0x40U)};  // stays a NaN
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

// Return the 64 random bits that four neighbouring elements of the tensor `key` stands for share, and the 16 of
// them that belong to one element.
inline constexpr uint64_t kElementsPerDraw = 4;
constexpr uint64_t rounding_draw(uint64_t key, uint64_t element) {
  return base::random_bits(key, element / kElementsPerDraw);
}
constexpr uint32_t rounding_bits(uint64_t draw, uint64_t element) {
  return static_cast<uint32_t>(draw >> (16 * (element % kElementsPerDraw))) & 0xffffU;
}

// `random` is uniform in [0, 65536). Infinities and NaN stay; values that bf16 has stay.
constexpr Bf16 stochastic(float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7f800000U) == 0x7f800000U) return nearest(value);
  return {static_cast<uint16_t>((bits + random) >> 16)};
}

}  // namespace shardrun::kernels::cuda
