// ModelPlan: what one rank of a training job will hold, planned before anything is allocated (rank_memory.h). The trainer
// allocates exactly this; `shardrun plan` shows it, and the run record keeps it beside what was measured.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>

#include "runtime/plan/utilization.h"

namespace shardrun::plan {

// Bytes of the rank that holds most, as far as they are in memory at one time.
struct MemoryPlan {
  int64_t masters = 0;        // fp32 parameters of its shard
  int64_t compute_copy = 0;   // the same parameters in bf16; 0 when the job computes in fp32
  int64_t frozen = 0;         // parameters of its shard that are not trained, as they are computed with
  int64_t gradients = 0;      // fp32 gradients of its shard
  int64_t moments = 0;        // optimizer moments; a window of them when they lie in a file or beside the GPU
  int64_t gathered = 0;       // buffers of whole blocks and of their gradients
  int64_t activations = 0;    // activations and scratch; a window of them when they lie elsewhere
  int64_t offloaded = 0;      // a GPU's moments and activations that lie in pinned memory of the host
  int64_t workspace = 0;      // workspace of kernels, on all threads
  int64_t communication = 0;  // what sums over ranks receive
  int64_t saving = 0;         // copies of state that checkpoints are written from beside training
  int64_t in_files = 0;       // bytes on disk, which are no part of the total
  // What is there before anything is allocated: programs, libraries and connections. For a run it is measured, before the
  // run it is what process_bytes() says.
  int64_t process = 0;
  // 1: the model's state, `gathered`, `activations` and `workspace` lie in a GPU's memory; the rest is the host's.
  int64_t on_gpu = 0;
  int64_t context = 0;  // what CUDA and its libraries take of a GPU's memory beside all that is allocated

  int64_t gpu_total() const {
    return on_gpu == 0 ? 0 : model_state() + gathered + activations + workspace + context;
  }
  int64_t host_total() const { return total() - gpu_total(); }
  int64_t model_state() const { return masters + compute_copy + frozen + gradients + moments; }
  int64_t total() const {
    return model_state() + gathered + activations + offloaded + workspace + communication + saving + process +
           context;
  }
};

// Kinds are added: documents of before lack them.
void fields(auto& visit, base::Is<MemoryPlan> auto& memory) {
  visit.later("masters", memory.masters);
  visit.later("compute_copy", memory.compute_copy);
  visit.later("frozen", memory.frozen);
  visit.later("gradients", memory.gradients);
  visit.later("moments", memory.moments);
  visit.later("gathered", memory.gathered);
  visit.later("activations", memory.activations);
  visit.later("offloaded", memory.offloaded);
  visit.later("workspace", memory.workspace);
  visit.later("communication", memory.communication);
  visit.later("saving", memory.saving);
  visit.later("in_files", memory.in_files);
  visit.later("process", memory.process);
  visit.later("on_gpu", memory.on_gpu);
  visit.later("context", memory.context);
  visit.derived("total", memory.total());
}

struct ModelPlan {
  int64_t parameters = 0, blocks = 0;
  int64_t trained = 0;  // of those parameters; all, unless the job trains adapters
  FlopsPerToken flops_per_token;
  int shard_degree = 1, replicas = 1, tensor_parallel = 1, pipeline_parallel = 1, virtual_stages = 1;
  int64_t sent_to_stages = 0;  // bytes of a step, from a rank to other stages of a pipeline
  MemoryPlan memory;
};

void fields(auto& visit, base::Is<ModelPlan> auto& model) {
  visit("parameters", model.parameters);
  visit("blocks", model.blocks);
  visit.later("trained", model.trained);
  visit("flops_per_token", model.flops_per_token.causal);
  visit("full_flops_per_token", model.flops_per_token.full);
  visit("shard_degree", model.shard_degree);
  visit("replicas", model.replicas);
  visit("tensor_parallel", model.tensor_parallel);
  visit.later("pipeline_parallel", model.pipeline_parallel);
  visit.later("virtual_stages", model.virtual_stages);
  visit.later("sent_to_stages", model.sent_to_stages);
  visit("bytes_per_rank", model.memory);
}

// What a rank's program with its libraries holds, and what the endpoints of the comm plugin add in a world of more than one
// rank: Debian 12's, for where nobody has measured them (`shardrun-rank footprint` does).
constexpr int64_t program_bytes(int64_t world_size) {
  constexpr int64_t kProgram = 10'500'000, kEndpoints = 3'000'000;
  return kProgram + (world_size > 1 ? kEndpoints : 0);
}

// Returns what a rank holds before it has allocated anything: `program`, the pages of its code that reading a job, training and
// meeting the others touch beyond that, and on a GPU our library with cublasLt 13.0, as a rank held them that found no driver;
// what the driver keeps on the host is not known yet.
constexpr int64_t process_bytes(int64_t program, int64_t world_size, bool on_gpu = false) {
  constexpr int64_t kOwn = 1'200'000, kConnections = 900'000, kGpuLibraries = 209'000'000;
  return program + kOwn + (world_size > 1 ? kConnections : 0) + (on_gpu ? kGpuLibraries : 0);
}

}  // namespace shardrun::plan
