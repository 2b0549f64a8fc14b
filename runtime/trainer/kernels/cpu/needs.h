// What single ops answer to kernels/workspace.h. Internal to runtime/trainer/kernels.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/workspace.h"

namespace shardrun::kernels {

// Of the calling thread.
int64_t linear_workspace_bytes(DType dtype, const LinearCall& call);
void prepare_linear(DType dtype, const LinearCall& call);
// Of each thread.
int64_t attention_workspace_bytes(const AttentionShape& shape);

}  // namespace shardrun::kernels
