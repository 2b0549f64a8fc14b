// What a CPU's ops need beside their arguments that oneDNN decides: scratch of matrix products, and compiled products. What
// our own ops need is arithmetic (runtime/plan/workspace.h).
//
// A thread's ops share one workspace, which grows to the largest need and stays; buffers of a few rows that loops keep
// on the heap are not counted. A product is compiled at its first use unless prepare() did it before.
//
// Sizes are as in ops.h; for a given number of the caller's OpenMP threads and one machine the answers repeat.
// Thread rule: pure functions, but prepare() compiles for the caller alone.
#pragma once

#include <cstdint>

#include "runtime/plan/model/ops.h"

namespace shardrun::kernels {

using plan::LinearCall;
using plan::OpList;

// Returns the bytes of the calling thread's workspace that the largest product of the list needs.
int64_t product_bytes(const OpList& ops);
// Compiles the products of the list, so that their code is there before anything is measured or timed.
void prepare(const OpList& ops);
// Returns how many products the calling thread has compiled, here or at their first use.
int64_t compiled_products();

}  // namespace shardrun::kernels
