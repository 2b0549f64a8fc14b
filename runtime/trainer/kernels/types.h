// Types that ops of every processor share.
//
// Thread rule: pure.
#pragma once

#include <cstdint>

namespace shardrun::kernels {

enum class DType { kFp32, kBf16 };
constexpr int size_of(DType dtype) {
  return dtype == DType::kFp32 ? 4 : 2;
}

// The upper half of an fp32 number; conversions round to nearest even.
struct Bf16 {
  uint16_t bits;
};

// Numbers that classifier_slice_stats (kernels/sliced_ops.h) writes for a row.
inline constexpr int64_t kSliceStats = 3;

}  // namespace shardrun::kernels
