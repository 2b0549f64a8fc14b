// Matrix products of bf16 with sums in fp32 by tiles (tile_products.h), for CPUs whose AMX was measured to do more with these loops
// than with oneDNN's. This header is internal to kernels/cpu.
//
// Columns of the second operand are packed as tiles read them, up to 512 at a time and 2048 deep. Rows of the first are copied 32
// at a time and 256 deep, so that a tile's rows lie in one piece, and transposed before that if they lie so.
//
// An element is one sum in ascending order of K, cut nowhere: the same bits for any number of threads.
//
// Thread rule: pure functions on the caller's memory, on the caller's threads.
#pragma once

#include <cstddef>

#include "runtime/plan/tiled_scratch.h"
#include "runtime/trainer/kernels/types.h"

namespace shardrun::kernels::packed {

// Computes a product; `bias` may be null. The scratch is plan::tiled_bytes() for so many threads, aligned to a cache line. The
// machine has AVX-512 with bf16 or AMX, and plan::can_pack() holds.
template <typename C>
void multiply_tiled(C* c, const Bf16* a, const Bf16* b, const Bf16* bias, const plan::Product& product,
                    std::byte* scratch, int threads);

}  // namespace shardrun::kernels::packed
