// How large a Llama is and what full_shard makes each rank hold of it, before any memory is touched.
//
// The same sums as shard::Engine::planned_bytes and the moments beside it; a test holds them together.
// Thread rule: pure function.
#pragma once

#include <cstdint>

#include "runtime/contract/job_spec.h"
#include "runtime/contract/launch_plan.h"

namespace shardrun::launcher {

struct ModelSize {
  int64_t parameters = 0;
  int64_t blocks = 0;
  // Per rank; every block is padded to a multiple of 32 elements a rank.
  int64_t master_bytes = 0;    // fp32, and the bf16 copy where that is what is gathered
  int64_t moment_bytes = 0;    // two fp32
  int64_t gradient_bytes = 0;  // the fp32 shard
  int64_t gathered_bytes = 0;  // buffers of whole blocks and of their fp32 gradients

  int64_t arena_bytes() const { return master_bytes + moment_bytes + gradient_bytes + gathered_bytes; }
};

// Of a spec whose program is the trainer, with the batch that was solved for it.
ModelSize model_size(const contract::JobSpec& spec, const contract::BatchPlan& batch);

}  // namespace shardrun::launcher
