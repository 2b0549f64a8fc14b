#include "runtime/trainer/kernels/gpu.h"

#include <unistd.h>

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
  ASSIGN_OR_RETURN(auto backend, table.open(options));
  return Gpu(std::move(plugin).value(), std::move(backend));
}

}  // namespace shardrun::kernels
