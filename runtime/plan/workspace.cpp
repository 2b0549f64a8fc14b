#include "runtime/plan/workspace.h"

#include <algorithm>

#include "runtime/plan/packed_scratch.h"
#include "runtime/plan/tiled_scratch.h"

namespace shardrun::plan {

Widened::Widened(base::Cursor& pieces, const LinearCall& call) {
  const Product p = product_of(call);
  a = pieces.take<float>(p.M * p.K);
  b = pieces.take<float>(p.K * p.N);
  if (p.bias) bias = pieces.take<float>(p.N);
  if (p.is_narrow) c = pieces.take<float>(p.M * p.N);
}

int64_t widened_bytes(const LinearCall& call) {
  base::Cursor counted(nullptr);
  const Widened widened(counted, call);
  return counted.bytes();
}

namespace {

// What oneDNN 2.6 copies of a product's operands on each thread, with AVX-512 and AMX: columns of the second operand as
// deep as the product is, rows of a transposed first one, and sums that wait for others; all up to a limit. Of the largest
// product of ten models, from a Llama of a million parameters to one of 70 billion, 128 to 16384 tokens, it is within
// 0.23 MiB a thread in bf16, and within 0.65 in fp32, on one or two threads; in bf16 on eight, too. On more, or in fp32, a
// thread may get a copy of a small result for itself, which nothing here counts.
int64_t scratch_of_thread(const Product& p, DType dtype) {
  if (dtype == DType::kBf16) {
    constexpr int64_t kOwn = 4992, kMost = 576 << 10, kMostTransposed = 672 << 10;
    return p.a_transposed ? std::min(640 * p.K + kOwn, kMostTransposed) : std::min(128 * p.K + kOwn, kMost);
  }
  constexpr int64_t kOwn = 768, kMost = 264 << 10, kMostTransposed = 529 << 10, kMostAdded = 1100 << 10;
  if (p.a_transposed) return std::min(1024 * p.K + kOwn, p.accumulate ? kMostAdded : kMostTransposed);
  return p.b_transposed ? std::min(256 * p.K + kOwn, kMost) : kMost / 2;
}

bool are_tiled(CpuProducts how, DType dtype) {
  return how == CpuProducts::kTiled && dtype == DType::kBf16;
}

}  // namespace

bool packs(CpuProducts how, const Product& product, DType dtype) {
  if (how != CpuProducts::kPacked && how != CpuProducts::kTiled) return false;
  return can_pack(product, dtype) && (!are_tiled(how, dtype) || can_tile(product));
}

int64_t packed_bytes(CpuProducts how, const Product& product, DType dtype, int threads) {
  return are_tiled(how, dtype) ? tiled_bytes(product, threads) : packed_bytes(product, dtype, threads);
}

int64_t expected_product_bytes(const OpList& ops, int threads, CpuProducts products) {
  const bool widens = ops.dtype == DType::kBf16 && products == CpuProducts::kWidened;
  int64_t most = 0;
  for (const LinearCall& call : ops.linears) {
    if (packs(products, product_of(call), ops.dtype)) {
      most = std::max(most, packed_bytes(products, product_of(call), ops.dtype, threads));
      continue;
    }
    const int64_t scratch = threads * scratch_of_thread(product_of(call), widens ? DType::kFp32 : ops.dtype);
    most = std::max(most, scratch + (widens ? widened_bytes(call) : 0));
  }
  return most;
}

int64_t cpu_workspace_bytes(const OpList& ops, int threads, int64_t product_bytes) {
  const int64_t heads = ops.attention.B * ops.attention.K;
  const int64_t others = std::max<int64_t>(1, std::min<int64_t>(heads, threads)) - 1;
  const int64_t attention = heads > 0 ? attention_workspace_bytes(ops.attention) : 0;
  return std::max(product_bytes, attention) + others * attention;
}

// As attention.cu, norms.cu and gemm.cu ask for it.
int64_t gpu_workspace_bytes(const OpList& ops, int64_t hidden) {
  constexpr int64_t kFp32 = sizeof(float), kProducts = int64_t{32} << 20;
  constexpr int64_t kNormBlocks = 512, kSumGroups = 128;  // at most; LayerNorm has two gradients
  int64_t bytes = std::max(kGpuWorkspaceBytes, (2 * kNormBlocks + kSumGroups) * hidden * kFp32);
  const AttentionShape& attention = ops.attention;
  bytes = std::max(bytes, attention.B * attention.T * attention.H * kFp32);
  for (const LinearCall& call : ops.linears)
    bytes = std::max(bytes, std::max(kProducts + call.O * kFp32, kSumGroups * call.O * kFp32));
  return bytes;
}

int64_t cudnn_attention_bytes(const AttentionShape& s) {
  constexpr int64_t kTile = 64, kFp32 = sizeof(float), kMargin = int64_t{4} << 20;
  const int64_t rounded = (s.T + kTile - 1) / kTile * kTile;
  const int64_t scores = s.B * s.H * rounded * rounded * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t of_heads = s.H == s.K ? 0 : 2 * s.B * s.H * rounded * s.D * kFp32;
  return scores + of_heads + s.B * s.H * rounded * kFp32 + kMargin;
}

}  // namespace shardrun::plan
