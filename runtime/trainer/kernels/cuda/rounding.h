// Converts fp32 to bf16, to nearest even, and back, one value at a time. The functions are constexpr, so that the same lines
// run on a GPU (nvcc --expt-relaxed-constexpr) and in unit tests without one.
//
// Thread rule: pure functions.
// Tests: tests/unit/kernels/cuda_logic_test.cpp.
#pragma once

#include <bit>
#include <cstdint>

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

}  // namespace shardrun::kernels::cuda
