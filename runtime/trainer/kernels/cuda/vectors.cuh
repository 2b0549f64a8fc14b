// What kernels are written with: vector loads that widen, stores that narrow, sums of a block.
//
// This is device code alone. Kernels are templates over a width: how many elements a thread takes at once, 16 bytes
// where every pointer and row length allows it, else 1 element.
//
// Thread rule: as Device.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/trainer/kernels/cuda/instructions.cuh"
#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels::cuda {

// How many elements 16 bytes hold.
template <typename T>
inline constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

__device__ inline float wide(float value) {
  return value;
}
__device__ inline float wide(Bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
template <typename T>
__device__ inline T narrow(float value);
template <>
__device__ inline float narrow(float value) {
  return value;
}
template <>
__device__ inline Bf16 narrow(float value) {
  return {nearest_bf16(value)};
}

template <int kBytes>
struct WordOf;
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// Load and store kCount neighbouring elements, in words of at most 16 bytes to which `from` and `to` are aligned.
template <int kCount, typename T>
__device__ inline void load(float (&out)[kCount], const T* from) {
  constexpr int kWord = kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16, kPer = kWord / sizeof(T);
  static_assert(kCount % kPer == 0);
#pragma unroll
  for (int i = 0; i < kCount / kPer; ++i) {
    const typename WordOf<kWord>::Type word = reinterpret_cast<const typename WordOf<kWord>::Type*>(from)[i];
    T parts[kPer];
    memcpy(parts, &word, kWord);
#pragma unroll
    for (int j = 0; j < kPer; ++j) out[i * kPer + j] = wide(parts[j]);
  }
}
template <int kCount, typename T>
__device__ inline void store(T* to, const float (&values)[kCount]) {
  constexpr int kWord = kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16, kPer = kWord / sizeof(T);
  static_assert(kCount % kPer == 0);
#pragma unroll
  for (int i = 0; i < kCount / kPer; ++i) {
    T parts[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) parts[j] = narrow<T>(values[i * kPer + j]);
    typename WordOf<kWord>::Type word;
    memcpy(&word, parts, kWord);
    reinterpret_cast<typename WordOf<kWord>::Type*>(to)[i] = word;
  }
}

// Sums over all threads of a block, whose number is a multiple of 32, in one order; every thread gets the same bits.
template <typename Value, int kCount>
__device__ inline void block_sum(Value (&values)[kCount]) {
  auto& parts = shared_memory<Value[kCount][32]>();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32,
            warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
      values[i] += __shfl_xor_sync(0xffffffffU, values[i], offset);
  }
  __syncthreads();  // wait until the sums of the call before have been read
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (lane == 0) parts[i][warp] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    Value sum = 0;
    for (int w = 0; w < warps; ++w) sum += parts[i][w];
    values[i] = sum;
  }
}

}  // namespace shardrun::kernels::cuda
