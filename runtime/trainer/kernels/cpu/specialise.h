// How an op hands over to its specialised kernel, and how its source learns that it is being translated into one.
//
// Internal to kernels/cpu. Thread rule: pure.
#pragma once

#include <cstdint>
#include <type_traits>

#ifndef SHARDRUN_SPECIALISED
#include "runtime/trainer/kernels/specialised.h"
#endif

namespace shardrun::kernels {

#ifdef SHARDRUN_SPECIALISED
// The size that this translation is for.
constexpr int64_t sized(int64_t) {
  return SHARDRUN_SPECIALISED;
}
// In a specialised kernel there is nobody to hand over to.
#define SHARDRUN_HAND_OVER(op, Type, size, ...)
#else
inline int64_t sized(int64_t size) {
  return size;
}
template <typename Type, typename... Arguments>
bool run_specialised(Op op, int64_t size, Arguments... arguments) {
  constexpr DType kDType = std::is_same_v<Type, float> ? DType::kFp32 : DType::kBf16;
  const auto kernel = reinterpret_cast<void (*)(Arguments...)>(find({op, kDType, size}));
  if (kernel == nullptr) return false;
  kernel(arguments...);
  return true;
}
// Leaves the op when a specialised kernel has done its work. The arguments are those of the kernel, by type and order.
#define SHARDRUN_HAND_OVER(op, Type, size, ...) \
  if (run_specialised<Type>(op, size, __VA_ARGS__)) return
#endif

}  // namespace shardrun::kernels
