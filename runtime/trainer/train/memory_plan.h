// What a rank of a session will hold, by arithmetic: no memory is touched, so the plan of 70 billion parameters costs
// no more than any other.
//
// A machine's part in it is the workspace of its kernels: plan with as many OpenMP threads as the rank will have.
//
// Thread rule: pure functions, but prepare_products().
#pragma once

#include "runtime/plan/model_plan.h"
#include "runtime/trainer/shard/engine.h"
#include "runtime/trainer/train/network.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

// How the session's engine is built.
shard::EngineOptions engine_options(const SessionOptions& options,
                                    kernels::Backend& backend = kernels::cpu_backend());
// The session's model; `tensor` as in Groups.
model::ModelOptions model_options(const SessionOptions& options, comm::Communicator* tensor,
                                  kernels::Backend& backend = kernels::cpu_backend());
// Of the copies that checkpoints are written from beside training.
int64_t staging_bytes(const plan::ShardLayout& layout, int replicas);
// Bytes of one rank's part that the staged communicators of a GPU may be given, as far as their memory depends on it.
inline constexpr int64_t kLargestStagedPart = int64_t{16} << 20;
// Of one checkpoint on the disk, without the little that headers take.
int64_t checkpoint_bytes(const Network& network);
// Of the ops that a rank on a GPU runs, but for attention by cuDNN.
int64_t gpu_workspace_bytes(const SessionOptions& options, int tensor_parallel);
// Planned for attention by cuDNN, which no one knows to be there before the ranks run; 0: it is not to be used.
int64_t cudnn_bytes(const SessionOptions& options, int tensor_parallel);
// Has oneDNN build for the calling thread the products that training will run, so that nothing but planned memory is added later.
void prepare_products(const SessionOptions& options, int tensor_parallel);

// Of a mesh with these degrees; every rank of it holds the same, but for padding.
plan::ModelPlan plan_model(const SessionOptions& options, int shard_degree, int replicas,
                           int tensor_parallel);

}  // namespace shardrun::train
