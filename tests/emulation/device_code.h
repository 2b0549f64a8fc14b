// What a kernel sees of the emulated GPU: its indices, barriers, warp-level steps, shared memory, copies, tensor cores.
//
// Names without a namespace are CUDA's own. Warp-level steps want all 32 lanes; what a real GPU leaves undefined
// ends the kernel with a finding (tests/emulation/block.h). Thread rule: call these from kernels only.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

void __syncthreads();

inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

namespace shardrun::emulation {

// A step that the lanes of a warp take together: each leaves some words and sees those of all.
enum class Step { kShuffle, kLoadMatrices, kMultiplyAdd };
using LaneWords = std::array<uint64_t, 6>;
const LaneWords* take_step(Step step, unsigned lanes, const LaneWords& mine);
int lane();

template <typename T>
T shuffled(unsigned lanes, T value, int from) {
  LaneWords mine{};
  static_assert(sizeof value <= sizeof mine);
  std::memcpy(mine.data(), &value, sizeof value);
  const LaneWords* const all = take_step(Step::kShuffle, lanes, mine);
  if (from >= 0 && from < 32) std::memcpy(&value, all[from].data(), sizeof value);
  return value;
}

// One block's memory between unreadable pages; it is filled with rubbish when a block first asks for it.
class SharedPart {
 public:
  SharedPart(size_t bytes, size_t alignment);
  void* of_block();

 private:
  size_t bytes_;
  std::byte* memory_;
  uint64_t filled_for_ = 0;  // number of a block
};
std::byte* dynamic_shared_bytes();

// The promises are in runtime/trainer/kernels/cuda/instructions.cuh.
template <typename T>
T& shared_memory() {
  static SharedPart part(sizeof(T), alignof(T));
  return *static_cast<T*>(part.of_block());
}
template <typename T>
T* dynamic_shared_memory() {
  return reinterpret_cast<T*>(dynamic_shared_bytes());
}
void start_copy(const void* shared, const void* from, bool is_there);
void commit_copies();
void wait_for_copies(int pending);
template <int kPending>
void wait_for_copies() {
  wait_for_copies(kPending);
}
void load_matrices(uint32_t (&r)[4], const void* from);
void load_matrices_transposed(uint32_t (&r)[4], const void* from);
void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
// A NaN becomes the one that the GPU has.
inline uint16_t nearest_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
inline float fast_exp2(float value) {
  const float power = std::exp2(value);
  return power < 0x1p-126F ? 0.0F : power;  // NaN stays
}

}  // namespace shardrun::emulation

template <typename T>
T __shfl_sync(unsigned lanes, T value, int from) {
  return shardrun::emulation::shuffled(lanes, value, from % 32);
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int other) {
  return shardrun::emulation::shuffled(lanes, value, shardrun::emulation::lane() ^ other);
}
template <typename T>
T __shfl_down_sync(unsigned lanes, T value, int distance) {
  return shardrun::emulation::shuffled(lanes, value, shardrun::emulation::lane() + distance);
}
