// What ops need beside their arguments, as far as our own code decides it: workspaces of a CPU's threads and of a GPU.
// Scratch of oneDNN's products is an input: ranks ask it (kernels/workspace.h), a launcher estimates it.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "runtime/base/memory.h"
#include "runtime/plan/attention_scratch.h"
#include "runtime/plan/model/ops.h"

namespace shardrun::plan {

// ---- of a CPU

// A bf16 product's operands and result as fp32, where they are not: what is multiplied by CPUs without instructions for
// bf16. Over nullptr it only counts bytes.
struct Widened {
  Widened(base::Cursor& pieces, const LinearCall& call);
  float *a, *b;
  float *bias = nullptr, *c = nullptr;  // null: none, and fp32 already
};
int64_t widened_bytes(const LinearCall& call);

// How a CPU multiplies: with bf16 operands widened for oneDNN, by oneDNN, or with packed operands where sizes allow it; kTiled:
// those of bf16 by tiles.
enum class CpuProducts { kWidened, kOneDnn, kPacked, kTiled };

// Says whether a CPU that multiplies so packs the operands of a product, and returns what it holds then on so many threads.
bool packs(CpuProducts how, const Product& product, DType dtype);
int64_t packed_bytes(CpuProducts how, const Product& product, DType dtype, int threads);

// Returns what the largest product of the list needs on a rank with `threads` threads: about what oneDNN 2.6 answers
// (workspace.cpp says how far off); copies of widened operands and packed ones are exact.
int64_t expected_product_bytes(const OpList& ops, int threads, CpuProducts products);

// Returns the bytes of all threads of a rank: products run on the caller's workspace of `product_bytes`, attention on one
// for each thread that has a head to work on.
int64_t cpu_workspace_bytes(const OpList& ops, int threads, int64_t product_bytes);

// ---- of a GPU

// Ops of a GPU share at least this much, of which products take 32 MiB.
inline constexpr int64_t kGpuWorkspaceBytes = int64_t{64} << 20;
// CUDA takes this much beside all that is allocated: its context, cublasLt's handle and the code of kernels, which is loaded
// when they are first launched. Measured as what nvidia-smi shows of a rank less the rest of its plan, on an H100 with driver
// 580.159 and CUDA 13.0: 541 to 547 MiB.
inline constexpr int64_t kGpuContextBytes = int64_t{550} << 20;
// Returns the bytes of a workspace in which no op of the list has to ask for more, nor the norms of rows of `hidden`; more
// than three million tokens of a micro-batch are not thought of.
int64_t gpu_workspace_bytes(const OpList& ops, int64_t hidden);
// Returns the bytes of a workspace for attention by cuDNN, whose deterministic backward on Hopper keeps the gradients of all
// scores in bf16, of tiles of 64, a sum a row, and the gradients of keys and values for each query head in fp32 where heads
// share them. Source: cudnn-frontend's node/scaled_dot_product_flash_attention.h. On an H100 cuDNN 9.19 takes those gradients in
// bf16, half of what is counted here, and 1 to 2 MiB beside. What wants more is refused.
int64_t cudnn_attention_bytes(const AttentionShape& shape);
// More than that is only given to it on demand.
inline constexpr int64_t kMostCudnnBytes = int64_t{4} << 30;

}  // namespace shardrun::plan
