// How the ops of this folder are written: the device's state, an op's scope, vector loads, sums of a block.
//
// Only for the .cu files of this folder. Kernels are templates over a width: elements a thread takes at once, 16 bytes
// where every pointer and row length allows it, else 1. Thread rule: as Device.
#pragma once

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <array>
#include <cstring>
#include <optional>
#include <type_traits>

#include "runtime/kernels/cuda/device.h"
#include "runtime/kernels/cuda/instructions.cuh"
#include "runtime/kernels/cuda/product_table.h"
#include "runtime/kernels/ops.h"

namespace shardrun::kernels::cuda {

struct ProductPlans;  // gemm.cu

struct Device::State {
  int index = 0, multiprocessors = 0;
  std::string name;
  bool wait_after_each_op = false, tuning = false;
  cudaStream_t stream = nullptr;
  cudaEvent_t marks[2] = {nullptr, nullptr};
  cublasLtHandle_t products = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  ProductTable table{""};
  std::shared_ptr<ProductPlans> plans;
  int plain_shapes = 0;
  std::optional<base::Error> failure;    // the first
  std::array<const char*, 16> recent{};  // a ring of the ops since the last wait
  size_t ops_since_wait = 0;

  void fail(const char* op, cudaError_t error);
  void fail(const char* op, base::Code code, std::string why);
  std::string recent_ops() const;
};

// One op, from before its first launch until after its last: notes what fails under the op's name.
class OpScope {
 public:
  OpScope(Device& device, const char* name);
  ~OpScope();
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

  bool runs() const { return !state_.failure.has_value(); }
  cudaStream_t stream() const { return state_.stream; }
  // The device's workspace, for this op alone; null after a failure, which is noted.
  std::byte* scratch(size_t bytes);
  bool check(cudaError_t error);
  void fail(base::Code code, std::string why) { state_.fail(name_, code, std::move(why)); }
  // Lets `kernel` have more shared memory than 48 KiB.
  template <typename Kernel>
  bool allow_shared(Kernel* kernel, size_t bytes) {
    if (bytes <= 48 * 1024) return true;
    return check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  }
  Device::State& state() { return state_; }

 private:
  Device::State& state_;
  const char* name_;
};

// What a kernel is started with: its blocks, the threads of a block, and the block's dynamic shared memory.
struct LaunchShape {
  dim3 blocks, threads;
  size_t shared_bytes = 0;
};

// A failure is found where every op looks for one: ~OpScope.
template <typename... Parameters>
void launch(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            std::type_identity_t<Parameters>... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  (void)cudaLaunchKernelEx(&config, kernel, arguments...);
}

constexpr int64_t rounded_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr int64_t quotient_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit;
}
constexpr int64_t kAlignment = 256;  // of every part of a scratch

inline bool is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}
// Whether all of them (null counts as aligned) can be read 16 bytes at a time.
template <typename... Pointers>
bool are_aligned(const Pointers*... pointers) {
  return (is_aligned(pointers, 16) && ...);
}

// Elements of 16 bytes.
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
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
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

// kCount neighbouring elements, in words of at most 16 bytes to which `from` and `to` are aligned.
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
  __syncthreads();  // until the sums of the call before have been read
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

// Threads of a block that takes a row of `packs` vectors.
inline unsigned row_threads(int64_t packs, int64_t most = 256) {
  const int64_t wanted = rounded_up(packs, 32);
  return static_cast<unsigned>(wanted < 32 ? 32 : wanted > most ? most : wanted);
}

// out (columns) = the sum of in's rows (rows, columns), or += when `accumulate`: blocks of rows side by side, then the
// blocks in order. `partial`: sum_rows_bytes of scratch.
size_t sum_rows_bytes(int64_t rows, int64_t columns);
template <typename T>
void sum_rows(cudaStream_t stream, float* out, const T* in, int64_t rows, int64_t columns, bool accumulate,
              std::byte* partial);

}  // namespace shardrun::kernels::cuda
