#include "runtime/trainer/kernels/gpu.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include <fmt/format.h>

namespace shardrun::kernels {

using base::Code;
using base::Error;

constexpr std::string_view kBuild = SHARDRUN_VERSION " " SHARDRUN_GPU_INTERFACE;

base::Result<int> choose_gpu(const GpuOptions& options, int visible, std::string_view why_none) {
  if (visible == 0) {
    return Error(Code::kNotFound,
                 fmt::format("no GPU can be used here: {}; mend that, choose other nodes, or set [resources] "
                             "device = \"cpu\"",
                             why_none));
  }
  if (visible == 1 && options.gpus_per_node > 1) return 0;  // each rank was given its own
  const int index = options.local_rank / options.ranks_per_gpu;
  if (index < visible) return index;
  return Error(
      Code::kNotFound,
      fmt::format("rank {} of this node wants GPU {}, but {} can be used; ask for fewer ranks_per_node, "
                  "for more gpus_per_node, or let ranks share with ranks_per_gpu",
                  options.local_rank, index, visible));
}

// Counts as attention.cu, norms.cu and gemm.cu ask for it.
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
  constexpr int64_t kTile = 64, kFp32 = sizeof(float), kMargin = int64_t{1} << 20;
  const int64_t rounded = (s.T + kTile - 1) / kTile * kTile;
  const int64_t scores = s.B * s.H * rounded * rounded * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t of_heads = s.H == s.K ? 0 : 2 * s.B * s.H * rounded * s.D * kFp32;
  return scores + of_heads + s.B * s.H * rounded * kFp32 + kMargin;
}

base::Result<Gpu> Gpu::open(const std::string& library, const GpuOptions& options) {
  if (::access(library.c_str(), F_OK) != 0) {
    return Error(Code::kNotFound,
                 fmt::format("{} is not there: this shardrun was built without CUDA; build it with the "
                             "preset cuda, or set [resources] device = \"cpu\"",
                             library));
  }
  // Loading cublasLt reads 200 MB: that takes less than a second from a local disk, but all ranks of a cluster may
  // read them from one server, or an image is fetched as it is read.
  constexpr std::chrono::minutes kPatience{2};
  auto plugin = base::Plugin::open(
      library, {.symbol = "shardrun_gpu_v1", .smallest_struct = sizeof(GpuLibrary), .patience = kPatience});
  if (!plugin) {
    return Error(
        plugin.error().code(),
        plugin.error().message() +
            "; it needs cublasLt of the CUDA that it was built with, beside it or where the loader looks");
  }
  const auto& table = plugin->table<GpuLibrary>();
  if (std::string_view(table.header.build_id) != kBuild) {
    return Error(Code::kUnsupported,
                 fmt::format("{} is of build \"{}\", this program of \"{}\"; install both "
                             "from one build",
                             library, table.header.build_id, kBuild));
  }
  auto backend = table.open(options);
  if (!backend) return std::move(backend).error();
  return Gpu(std::move(plugin).value(), std::move(backend).value());
}

}  // namespace shardrun::kernels
