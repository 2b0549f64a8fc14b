// Whose attention the ranks of a job on GPUs run: cuDNN's, or the kernels of shardrun.
//
// The two differ in their bits, so all ranks run the same: cuDNN's where every rank has it in one version and each of them
// could make its plans, else ours. A checkpoint says which it was, and a run that continues it goes on with that as far as
// it may choose.
// Thread rule: one thread of each rank calls. Tests: tests/unit/train/attention_choice_test.cpp.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/spec/job_spec.h"
#include "runtime/trainer/comm/communicator.h"
#include "runtime/trainer/kernels/backend.h"

namespace shardrun::train {

using base::Result;

struct AttentionRequest {
  spec::GpuAttention wanted = spec::GpuAttention::kAuto;
  std::string saved{};    // `kept` of the checkpoint that the run continues; empty: none, or a CPU's
  std::string refusal{};  // why no cuDNN can run it, e.g. "documents are packed"; empty: it may
};

struct AttentionChoice {
  bool by_cudnn = false;
  std::string kept;    // for checkpoints: "cudnn 91900", or "shardrun"
  std::string text;    // for people: whose and why
  std::string notice;  // where the bits of the run that is continued cannot be had; else empty
};

// On this rank, cuDNN's attention is made ready and from then on used.
using TryCudnn = std::function<Result<kernels::CudnnAttentionUse>()>;

// Collective over `world`; the same answer on all ranks. A rank whose `try_cudnn` succeeded although the answer is ours
// must give it up again. kUnsupported: cuDNN's was wanted and cannot be, with the mend.
Result<AttentionChoice> choose_attention(comm::Communicator& world, const AttentionRequest& request,
                                         const TryCudnn& try_cudnn);

}  // namespace shardrun::train
