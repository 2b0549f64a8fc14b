// What a session is built with, from its options; and what it will hold, with oneDNN's part as oneDNN answers it.
//
// A machine's share in that is the workspace of its kernels: ask with as many OpenMP threads as the rank will have.
// Thread rule: pure functions, but prepare_products().
#pragma once

#include "runtime/plan/rank_memory.h"
#include "runtime/trainer/shard/engine.h"
#include "runtime/trainer/train/session.h"

namespace shardrun::train {

// How the session's engine is built.
shard::EngineOptions engine_options(const SessionOptions& options, kernels::Backend& backend);
// How its model is built.
model::ModelOptions model_options(const SessionOptions& options, const Groups& groups,
                                  kernels::Backend& backend);
// How its optimizer is built.
OptimizerOptions optimizer_options(const SessionOptions& options);
// What one rank of a mesh with these degrees holds.
plan::ModelPlan plan_model(const SessionOptions& options, const plan::Degrees& degrees);
// Has oneDNN build for the calling thread the products that training will run, so that nothing but planned memory is added later.
// Returns how many it has built for it by now.
int64_t prepare_products(const SessionOptions& options, int tensor_parallel);

}  // namespace shardrun::train
