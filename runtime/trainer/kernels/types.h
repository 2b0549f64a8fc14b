// Types that ops of every processor share.
//
// Thread rule: pure.
#pragma once

#include <cstdint>

#include "runtime/base/compute.h"

namespace shardrun::kernels {

using base::Bf16;
using base::DType;
using base::size_of;

// Numbers that ClassifierOps::slice_stats (kernels/ops.h) writes for a row.
inline constexpr int64_t kSliceStats = 3;

}  // namespace shardrun::kernels
