// Types that ops of every processor share. Needs nothing but <cstdint> and one header like it, so that NVRTC can read it too.
//
// Thread rule: pure.
#pragma once

#include <cstdint>

#include "runtime/base/compute.h"

namespace shardrun::kernels {

using base::DType;
using base::size_of;

// The upper half of an fp32; conversions round to nearest even.
struct Bf16 {
  uint16_t bits;
};

inline constexpr int64_t kSliceStats = 3;  // numbers a row of classifier_slice_stats (kernels/sliced_ops.h)

}  // namespace shardrun::kernels
