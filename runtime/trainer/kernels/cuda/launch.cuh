// How the ops of this folder are written: the device's state, an op's scope and launches.
//
// This header is only for the .cu files of this folder. Kernels are templates over a width: how many elements a
// thread takes at once, 16 bytes where every pointer and row length allows it, else 1 element.
//
// Thread rule: as Device.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <optional>
#include <type_traits>
#include <vector>

#include "runtime/trainer/kernels/cuda/cudnn_attention.h"
#include "runtime/trainer/kernels/cuda/device.h"
#include "runtime/trainer/kernels/cuda/graphs.cuh"
#include "runtime/trainer/kernels/cuda/instructions.cuh"
#include "runtime/trainer/kernels/cuda/product_table.h"
#include "runtime/trainer/kernels/cuda/vectors.cuh"
#include "runtime/trainer/kernels/fp8.h"
#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels::cuda {

struct ProductPlans;  // gemm.cu

struct Device::State {
  int index = 0, multiprocessors = 0, capability = 0;
  std::string name;
  bool wait_after_each_op = false, tuning = false, uses_graphs = false;
  cudaStream_t stream = nullptr;
  cudaEvent_t marks[2] = {nullptr, nullptr};
  std::vector<cudaEvent_t> stamps;  // the used ones come first
  size_t stamps_used = 0;
  cublasLtHandle_t products = nullptr;
  std::unique_ptr<CudnnAttention> cudnn;  // null: our own kernels run attention
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  ProductTable table{""};
  std::shared_ptr<ProductPlans> plans;
  std::vector<std::string> plain_products;
  Graphs graphs;
  int64_t graph_launches = 0;
  std::optional<base::Error> failure;    // the first failure
  std::array<const char*, 16> recent{};  // a ring of the ops since the last wait
  size_t ops_since_wait = 0;

  void fail(const char* op, cudaError_t error);
  void fail(const char* op, base::Code code, std::string why);
  std::string recent_ops() const;
};

// The scope of one op, from before its first launch until after its last: notes what fails under the op's name.
class OpScope {
 public:
  OpScope(Device& device, const char* name);
  ~OpScope();
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

  bool runs() const { return !state_.failure.has_value(); }
  cudaStream_t stream() const { return state_.stream; }
  // Returns the device's workspace, for this op alone; null after a failure, which is noted.
  std::byte* scratch(size_t bytes);
  bool check(cudaError_t error);
  void fail(base::Code code, std::string why) { state_.fail(name_, code, std::move(why)); }
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

// Starts `kernel`. A failure is found where every op looks for one: ~OpScope.
template <typename... Parameters>
void launch(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            std::type_identity_t<Parameters>... arguments) {
  // A kernel needs permission for 48 KiB or more, static shared memory included.
  constexpr size_t kMoreShared = 40 * 1024;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  if (shape.shared_bytes > kMoreShared) {
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes));
  }
  (void)cudaLaunchKernelEx(&config, kernel, arguments...);
}

constexpr int64_t rounded_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr int64_t quotient_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit;
}
// The bounds of a kernel must allow as many threads as it is launched with, or CUDA refuses the launch as an invalid value.
constexpr int kMostRowThreads = 256;
// Returns the threads of a block that takes a row of `packs` vectors.
constexpr unsigned row_threads(int64_t packs, int64_t most = kMostRowThreads) {
  const int64_t wanted = rounded_up(packs, 32);
  return static_cast<unsigned>(wanted < 32 ? 32 : wanted > most ? most : wanted);
}

constexpr int64_t kAlignment = 256;  // alignment of every part of a scratch

inline bool is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}
// Says whether all of them (null counts as aligned) can be read 16 bytes at a time.
template <typename... Pointers>
bool are_aligned(const Pointers*... pointers) {
  return (is_aligned(pointers, 16) && ...);
}

// Computes out (columns) = the sum of in's rows (rows, columns), or += when `accumulate`: blocks of rows side by
// side, then the blocks in order. `partial` is sum_rows_bytes of scratch.
size_t sum_rows_bytes(int64_t rows, int64_t columns);
template <typename T>
void sum_rows(cudaStream_t stream, float* out, const T* in, int64_t rows, int64_t columns, bool accumulate,
              std::byte* partial);

// Computes d (m,n) = a (m,k) · bᵀ, where b is (n,k), or += when `accumulate`: both factors lie along the inner dimension,
// as fp8 has to be. The bytes are one of the two forms of each matrix. Out is Bf16 or float.
template <typename Out>
void multiply_fp8(Device& device, const char* name, Out* d, const Fp8Matrix& a, const uint8_t* a_bytes,
                  const Fp8Matrix& b, const uint8_t* b_bytes, std::array<int64_t, 3> mnk, bool accumulate,
                  bool adds_fast);

}  // namespace shardrun::kernels::cuda
