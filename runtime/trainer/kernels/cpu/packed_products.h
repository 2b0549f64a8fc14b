// Matrix products with sums in fp32 for CPUs whose AVX-512 was measured to reach more of its peak with these loops than with
// oneDNN's. This header is internal to kernels/cpu.
//
// A word is one element in fp32 and two in bf16, which are multiplied together. Columns of the second operand are packed 64 at
// a time into words that follow each other as they are read; rows of the first are read where they lie, six at a time, or
// packed if they lie transposed. 6 × 64 sums stay in registers while `K` runs.
//
// An element is one sum in ascending order of K, cut nowhere: the same bits for any number of threads.
//
// Thread rule: pure functions on the caller's memory, on the caller's threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/plan/packed_scratch.h"
#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels::packed {

// Computes a product of T; `bias` may be null. The scratch is plan::packed_bytes() for so many threads, aligned to a cache line.
// The machine has AVX-512 with bf16, and plan::can_pack() holds.
template <typename C, typename T>
void multiply(C* c, const T* a, const T* b, const T* bias, const plan::Product& product, std::byte* scratch,
              int threads);

}  // namespace shardrun::kernels::packed
