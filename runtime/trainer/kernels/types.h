// Types that ops of every processor share.
//
// Thread rule: pure.
#pragma once

#include <cstdint>

#include "runtime/base/compute.h"

namespace shardrun::kernels {

using base::DType;
using base::size_of;

// The upper half of an fp32 number; conversions round to nearest even.
struct Bf16 {
  uint16_t bits;
};

// Numbers that ClassifierOps::slice_stats (kernels/ops.h) writes for a row.
inline constexpr int64_t kSliceStats = 3;

}  // namespace shardrun::kernels
