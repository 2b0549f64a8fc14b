// ModelOptions: how a model is run, whatever its architecture.
//
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/kernels/backend.h"
#include "runtime/trainer/kernels/ops.h"
#include "runtime/trainer/model/activations.h"

namespace shardrun::model {

// Which of attention's scores count as a model's FLOPs where a causal mask hides half of them: docs/formats.md.
enum class AttentionCredit { kCausal, kFull };

struct ModelOptions {
  kernels::DType compute = kernels::DType::kFp32;
  int micro_batch = 1, sequence_length = 1;
  Checkpointing checkpointing = Checkpointing::kNone;
  std::string offload_directory{};       // where activations that wait for backward lie; empty: in memory
  bool offload_to_host = false;          // of a GPU: they wait in pinned memory of the host
  comm::Communicator* tensor = nullptr;  // the ranks that share each matrix; null: this one alone
  int64_t most_targets = 0;  // tokens of a micro-batch with a target, of which a BERT has few; 0: all
  kernels::DeviceKind device = kernels::DeviceKind::kCpu;  // of the backend; plans are made without one
  kernels::Backend* backend = &kernels::cpu_backend();     // outlives the model
  bool fp8 = false;          // the linear layers of a Llama's blocks, beside bf16
  bool accumulates = false;  // whether backward() is asked to add, to what other micro-steps gave
};

}  // namespace shardrun::model
