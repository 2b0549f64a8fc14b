// ModelPlan: what one rank of a training job will hold, planned before anything is allocated (rank_memory.h). The trainer
// allocates exactly this; `shardrun plan` shows it, and the run record keeps it beside what was measured.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>

#include "runtime/plan/utilization.h"

namespace shardrun::plan {

// Bytes of the rank that holds most, in memory at a time.
struct MemoryPlan {
  int64_t masters = 0;        // fp32 parameters of its shard
  int64_t compute_copy = 0;   // the same in bf16; 0 when fp32 is computed with
  int64_t gradients = 0;      // fp32, of its shard
  int64_t moments = 0;        // of the optimizer; a window of them when they lie in a file or beside the GPU
  int64_t gathered = 0;       // buffers of whole blocks and of their gradients
  int64_t activations = 0;    // of the model, with its scratch; a window of them when they lie elsewhere
  int64_t offloaded = 0;      // a GPU's moments and activations that lie in pinned memory of the host
  int64_t workspace = 0;      // of kernels, on all threads
  int64_t communication = 0;  // what sums over ranks receive
  int64_t saving = 0;         // copies of state that checkpoints are written from beside training
  int64_t in_files = 0;       // on disk, not part of the total
  // Before anything was allocated: programs, libraries, connections, compiled kernels. Of a run it is measured, before
  // it is what process_bytes() says.
  int64_t process = 0;
  // 1: the model's state, `gathered`, `activations` and `workspace` lie in a GPU's memory; the rest is the host's.
  int64_t on_gpu = 0;
  int64_t context = 0;  // what CUDA and its libraries take of a GPU's memory beside all that is allocated

  int64_t gpu_total() const {
    return on_gpu == 0 ? 0 : model_state() + gathered + activations + workspace + context;
  }
  int64_t host_total() const { return total() - gpu_total(); }
  int64_t model_state() const { return masters + compute_copy + gradients + moments; }
  int64_t total() const {
    return model_state() + gathered + activations + offloaded + workspace + communication + saving + process +
           context;
  }
};

struct ModelPlan {
  int64_t parameters = 0, blocks = 0;
  FlopsPerToken flops_per_token;
  int shard_degree = 1, replicas = 1, tensor_parallel = 1;
  MemoryPlan memory;
};

// What a rank holds before it has allocated anything, as it was measured: the program with its libraries and compiled
// products; in a world of more than one, the endpoints of the comm plugin, too. On a GPU also our library with cublasLt
// 13.0, as a rank held them that found no driver; what the driver keeps on the host is not known yet.
constexpr int64_t process_bytes(int64_t world_size, bool on_gpu = false) {
  constexpr int64_t kProgram = 12'000'000, kEndpoints = 7'700'000, kGpuLibraries = 209'000'000;
  return kProgram + (world_size > 1 ? kEndpoints : 0) + (on_gpu ? kGpuLibraries : 0);
}

}  // namespace shardrun::plan
