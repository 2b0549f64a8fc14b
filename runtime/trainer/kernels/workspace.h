// What ops need beside their arguments, known before they run: memory for each thread, and compiled products.
//
// A thread's ops share one workspace, which grows to the largest need and stays; buffers of a few rows that loops keep
// on the heap are not counted. A product is compiled at its first use unless prepare() did it before.
//
// Whoever plans memory lists what a model will call. Sizes are as in ops.h; for a given number of the caller's
// OpenMP threads and one machine the answers repeat.
//
// Thread rule: pure functions, but prepare() compiles for the caller alone.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/trainer/kernels/ops.h"

namespace shardrun::kernels {

// One linear_* function of ops.h with its sizes.
struct LinearCall {
  enum class Op { kForward, kForwardFp32, kBackwardInput, kBackwardInputFp32, kBackwardWeight };
  Op op = Op::kForward;
  int64_t N = 0, C = 0, O = 0;
  bool bias = false, accumulate = false;
};

struct OpList {
  DType dtype = DType::kFp32;
  std::vector<LinearCall> linears;
  AttentionShape attention{};  // forward and backward; B = 0: none

  // Adds to the list, for every gradient of weights, the same product added to another.
  void also_accumulate() {
    for (size_t i = 0, count = linears.size(); i < count; ++i) {
      if (linears[i].op != LinearCall::Op::kBackwardWeight) continue;
      linears.push_back(linears[i]);
      linears.back().accumulate = true;
    }
  }
};

// Returns the bytes of workspace of all threads that the caller's ops run on.
int64_t workspace_bytes(const OpList& ops);
// Compiles the products of the list, so that their code is there before anything is measured or timed.
void prepare(const OpList& ops);
// Returns how many products the calling thread has compiled, here or at their first use.
int64_t compiled_products();

}  // namespace shardrun::kernels
