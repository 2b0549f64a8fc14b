// What a rank of a session will hold, by arithmetic: no memory is touched, so the plan of 70 billion parameters costs
// no more than any other.
//
// Thread rule: pure functions.
#pragma once

#include "runtime/contract/model_plan.h"
#include "runtime/shard/engine.h"
#include "runtime/train/session.h"

namespace shardrun::train {

// How the session's engine is built.
shard::EngineOptions engine_options(const SessionOptions& options);
// The session's model; `tensor` as in Groups.
model::LlamaOptions model_options(const SessionOptions& options, comm::Communicator* tensor);

// Of a mesh with these degrees; every rank of it holds the same, but for padding.
contract::ModelPlan plan_model(const SessionOptions& options, int shard_degree, int replicas,
                               int tensor_parallel);

}  // namespace shardrun::train
