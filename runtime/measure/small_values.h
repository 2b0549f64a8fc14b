// Made-up weights and activations.
//
// Thread rule: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::measure {

// Returns small values of both signs: bf16 from the upper half of a float around 0.02.
inline std::vector<kernels::Bf16> small_values(int64_t count) {
  std::vector<kernels::Bf16> values(static_cast<size_t>(count));
  uint32_t state = 1;
  for (kernels::Bf16& value : values) {
    state = state * 1664525U + 1013904223U;
    value = kernels::Bf16{static_cast<uint16_t>(0x3C00U | (state >> 25) | (state & 0x8000U))};
  }
  return values;
}

}  // namespace shardrun::measure
