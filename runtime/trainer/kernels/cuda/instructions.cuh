// What only a GPU has: memory of a block, copies that arrive later, and the tensor cores' instructions.
//
// Kernels take all of it from here, so that they are plain C++ apart from this file: nvcc sees the instructions, any
// other compiler only what they promise, which tests/emulation keeps on a CPU. PTX names are as in NVIDIA's PTX ISA 8.
//
// Thread rule: as kernels; functions of a warp are called by all of its 32 lanes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels::cuda {

#ifdef __CUDACC__

// Returns the block's T, one for all places of a kernel that ask for the same type; it is not initialized.
template <typename T>
__device__ inline T& shared_memory() {
  __shared__ T memory;
  return memory;
}
// Returns the shared memory that the launch asked for, aligned to 128 bytes.
template <typename T>
__device__ inline T* dynamic_shared_memory() {
  extern __shared__ __align__(128) unsigned char shardrun_shared_bytes[];
  return reinterpret_cast<T*>(shardrun_shared_bytes);
}

// Starts copying 16 aligned bytes into shared memory, or zeros if they are not there; `from` may then be anything.
__device__ inline void start_copy(const void* shared, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}
// Makes a group of the copies that the thread has started since the last group.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Waits until all of this thread's groups but the last kPending have arrived; other threads see them behind a barrier.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Loads four matrices of 8 x 8 from shared memory: lane i's address is row i % 8 of matrix i / 8. Of each matrix a
// lane gets elements 2·(lane % 4) and the next one of row lane / 4, or of that row of the transposed matrix.
__device__ inline void load_matrices(uint32_t (&r)[4], const Bf16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const Bf16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
}
// Returns the bf16 nearest to `value`; of two equally near ones the even one.
__device__ inline uint16_t nearest_bf16(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
// Returns 2 to the power of `value` in one instruction, within 2^-22 of it; 0 where exp2f() would be subnormal.
__device__ inline float fast_exp2(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}
// Computes sum (16,8) += a (16,16) · b (16,8).
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

using emulation::commit_copies;
using emulation::dynamic_shared_memory;
using emulation::fast_exp2;
using emulation::load_matrices;
using emulation::load_matrices_transposed;
using emulation::multiply_add;
using emulation::nearest_bf16;
using emulation::shared_memory;
using emulation::start_copy;
using emulation::wait_for_copies;

#endif

}  // namespace shardrun::kernels::cuda
