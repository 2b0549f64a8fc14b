#include "runtime/trainer/kernels/workspace.h"

#include <omp.h>

#include <algorithm>

#include "runtime/base/memory.h"
#include "runtime/trainer/kernels/cpu/needs.h"
#include "runtime/trainer/kernels/cpu/thread_workspace.h"

namespace shardrun::kernels {

std::byte* thread_workspace(int64_t bytes) {
  thread_local base::Memory memory;
  if (memory.bytes() < bytes) {
    memory = {};  // freed before the new one exists, so there are never both
    auto grown = base::Memory::create(bytes);
    SHARDRUN_CHECK(grown);
    memory = std::move(grown).value();
  }
  return memory.data();
}

int64_t workspace_bytes(const OpList& ops) {
  int64_t products = 0;
  for (const LinearCall& call : ops.linears) {
    products = std::max(products, linear_workspace_bytes(ops.dtype, call));
  }
  // Products run on the caller's workspace; attention on one for each thread that has a head to work on.
  const int64_t heads = ops.attention.B * ops.attention.K;
  const int64_t others = std::max<int64_t>(1, std::min<int64_t>(heads, ::omp_get_max_threads())) - 1;
  const int64_t attention = heads > 0 ? attention_workspace_bytes(ops.attention) : 0;
  return std::max(products, attention) + others * attention;
}

void prepare(const OpList& ops) {
  for (const LinearCall& call : ops.linears) prepare_linear(ops.dtype, call);
}

}  // namespace shardrun::kernels
