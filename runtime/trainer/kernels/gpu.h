// Gpu: the backend of this rank's GPU, from the library libshardrun_gpu.so, which is loaded when a job wants one.
// So one shardrun-rank serves nodes with CUDA and nodes without (docs/decisions).
//
// The library is C++ of the same build: header.build_id says from which headers it was built, and any other is refused.
//
// Thread rule: one thread opens it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "plugins/abi/plugin.h"
#include "runtime/base/plugin_host.h"
#include "runtime/base/result.h"
#include "runtime/plan/workspace.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::kernels {

struct GpuOptions {
  int local_rank = 0;
  int gpus_per_node = 1;  // how many the job asked for
  int ranks_per_gpu = 1;
  int64_t workspace_bytes = plan::kGpuWorkspaceBytes;  // it grows when an op needs more
};

// Returns which of the `visible` GPUs belongs to a rank. kNotFound, in plain words, when there are too few, with
// `why_none` where there is none. A scheduler that shows each rank one GPU of its own is believed.
base::Result<int> choose_gpu(const GpuOptions& options, int visible, std::string_view why_none = "");

// What the library exports as `shardrun_gpu_v1`.
struct GpuLibrary {
  shardrun_plugin_header header;
  base::Result<std::unique_ptr<Backend>> (*open)(const GpuOptions& options);
};

class Gpu {
 public:
  // `library` is an absolute path. kNotFound: there is no such file (this shardrun was built without CUDA), or no
  // GPU here. kUnsupported: the library cannot be loaded, e.g. without cublasLt, or is of another build, or the
  // GPU is too old.
  static base::Result<Gpu> open(const std::string& library, const GpuOptions& options);

  Backend& backend() const { return *backend_; }

 private:
  Gpu(base::Plugin plugin, std::unique_ptr<Backend> backend)
      : plugin_(std::move(plugin)), backend_(std::move(backend)) {}

  base::Plugin plugin_;  // the backend's code lies in it
  std::unique_ptr<Backend> backend_;
};

}  // namespace shardrun::kernels
