// libshardrun_gpu.so: the one symbol through which kernels/gpu.cpp reaches this folder.
#include <utility>

#include "runtime/trainer/kernels/cuda/backend.h"
#include "runtime/trainer/kernels/gpu.h"

namespace shardrun::kernels {
namespace {

base::Result<std::unique_ptr<Backend>> open(const GpuOptions& options) {
  ASSIGN_OR_RETURN(const auto visible, cuda::device_count());
  ASSIGN_OR_RETURN(const auto index, choose_gpu(options, visible, visible == 0 ? cuda::why_no_device() : ""));
  ASSIGN_OR_RETURN(auto device,
                   cuda::Device::create(
                       {.index = index, .workspace_bytes = static_cast<size_t>(options.workspace_bytes)}));
  return cuda::make_backend(std::move(device));
}

constexpr char kBuild[] = SHARDRUN_VERSION " " SHARDRUN_GPU_INTERFACE;

constexpr GpuLibrary make_library() {
  GpuLibrary library{{SHARDRUN_PLUGIN_MAGIC, 1, 0, sizeof(GpuLibrary), "gpu", {}}, open};
  static_assert(sizeof(kBuild) <= sizeof library.header.build_id);
  for (size_t i = 0; i < sizeof(kBuild); ++i) library.header.build_id[i] = kBuild[i];
  return library;
}

}  // namespace
}  // namespace shardrun::kernels

extern "C" {
__attribute__((visibility("default"))) extern const shardrun::kernels::GpuLibrary shardrun_gpu_v1;
const shardrun::kernels::GpuLibrary shardrun_gpu_v1 = shardrun::kernels::make_library();
}
