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
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/workspace.h"

namespace shardrun::kernels {

// The least GPU memory that ops share as their workspace: products take 32 MiB of it.
inline constexpr int64_t kGpuWorkspaceBytes = int64_t{64} << 20;
// GPU memory that is in use beside all that is allocated: CUDA's context, cublasLt's handle and the code of
// kernels, which is loaded when they are first launched. A context alone took 555 MiB of a GPU with 188
// multiprocessors and 107 MiB of one with 34 (ggml-org/llama.cpp, pull request 23604), so about 400 of an H200's
// 132; the rest is for our kernels and cublasLt's. What nvidia-smi shows for a rank is to replace this figure.
inline constexpr int64_t kGpuContextBytes = int64_t{600} << 20;
// Returns the bytes of a workspace in which no op of the list has to ask for more, nor the norms of rows of
// `hidden`; it allows for no more than three million tokens in a micro-batch.
int64_t gpu_workspace_bytes(const OpList& ops, int64_t hidden);
// Returns the bytes of a workspace for attention by cuDNN. Its deterministic backward on Hopper keeps the gradients
// of all scores in bf16, in tiles of 64, a sum for each row, and, where query heads share keys and values, their
// gradients for each query head in fp32. Source: cudnn-frontend's node/scaled_dot_product_flash_attention.h; never
// measured. What wants more is refused.
int64_t cudnn_attention_bytes(const AttentionShape& shape);
// cuDNN gets more than this only on demand.
inline constexpr int64_t kMostCudnnBytes = int64_t{4} << 30;

struct GpuOptions {
  int local_rank = 0;
  int gpus_per_node = 1;  // how many the job asked for
  int ranks_per_gpu = 1;
  int64_t workspace_bytes = kGpuWorkspaceBytes;  // it grows when an op needs more
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
