// Network: which model a job trains, and making it. The only place that knows all of them.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/utilization.h"
#include "runtime/trainer/model/bert.h"
#include "runtime/trainer/model/llama.h"

namespace shardrun::train {

using base::Result;

using Network = std::variant<model::LlamaConfig, model::BertConfig>;

// kInvalid with what and the mend; for BERT also a tensor group, which only a Llama can be cut for.
Result<std::unique_ptr<model::Model>> create_model(const Network& network,
                                                   const model::ModelOptions& options);
// Of one rank of a tensor group; options.tensor is not looked at.
model::ActivationBytes activation_bytes(const Network& network, const model::ModelOptions& options,
                                        int tensor_parallel);
// What it will call of kernels that takes memory beside activations; as above.
kernels::OpList ops(const Network& network, const model::ModelOptions& options, int tensor_parallel);
// Tokens of a sequence that its batches give a target, at most.
int64_t most_targets(const Network& network, int sequence_length);
// Whether a micro-step visits a block twice.
bool revisits_blocks(const Network& network);

// Of one rank of a tensor group.
std::vector<model::BlockLayout> block_layouts(const Network& network, int tensor_rank, int tensor_parallel);
int vocabulary(const Network& network);
int hidden(const Network& network);
// As Hugging Face's config.json has it, one line.
std::string configuration(const Network& network);
// Model FLOPs of one token, forward and backward.
plan::FlopsPerToken flops_per_token(const Network& network, int sequence_length);

}  // namespace shardrun::train
