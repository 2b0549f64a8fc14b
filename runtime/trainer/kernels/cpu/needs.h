// What single ops answer to kernels/workspace.h. This header is internal to runtime/trainer/kernels.
#pragma once

#include <cstdint>

#include "runtime/trainer/kernels/workspace.h"

namespace shardrun::kernels {

// Returns what the calling thread needs.
int64_t linear_workspace_bytes(DType dtype, const LinearCall& call);
void prepare_linear(DType dtype, const LinearCall& call);
// Returns what each thread needs.
int64_t attention_workspace_bytes(const AttentionShape& shape);

}  // namespace shardrun::kernels
