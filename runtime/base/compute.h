// What a model is computed in and on: what a job asks for, a plan counts and a backend is built for.
//
// Thread rule: pure.
#pragma once

#include <cstdint>

namespace shardrun::base {

// The types that gathered parameters and activations may have.
enum class DType { kFp32, kBf16 };

constexpr int size_of(DType dtype) {
  return dtype == DType::kFp32 ? 4 : 2;
}

constexpr const char* name_of(DType dtype) {
  return dtype == DType::kFp32 ? "fp32" : "bf16";
}

// The upper half of an fp32 number; conversions round to nearest even.
struct Bf16 {
  uint16_t bits;
};

// Numbers of a row that the ranks of a tensor group exchange for the classifier: what ClassifierOps::slice_stats
// (kernels/ops.h) writes.
inline constexpr int64_t kSliceStats = 3;

enum class DeviceKind { kCpu, kGpu };

}  // namespace shardrun::base
