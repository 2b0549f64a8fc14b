// How large a Llama is and what full_shard makes each rank hold of it, before any memory is touched.
//
// Thread rule: pure function.
#pragma once

#include <cstdint>

#include "runtime/contract/job_spec.h"

namespace shardrun::launcher {

struct ModelSize {
  int64_t parameters = 0;
  int64_t blocks = 0;
  // Per rank.
  int64_t master_bytes = 0;    // fp32, and the bf16 copy where that is what is gathered
  int64_t moment_bytes = 0;    // two fp32
  int64_t gradient_bytes = 0;  // the fp32 shard
  int64_t gathered_bytes =
      0;  // two whole blocks in the compute dtype and two of fp32 gradients; 0 on one rank
};

ModelSize model_size(const contract::ModelSpec& model, int64_t ranks, contract::Precision precision);

}  // namespace shardrun::launcher
