// Types that ops of every processor share.
//
// Thread rule: pure.
#pragma once

#include <cstdint>

#include "runtime/base/compute.h"

namespace shardrun::kernels {

using base::Bf16;
using base::DType;
using base::kSliceStats;
using base::size_of;

}  // namespace shardrun::kernels
